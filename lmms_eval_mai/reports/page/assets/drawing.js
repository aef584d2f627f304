// What all figures share: colours of the theme, axes, and drawing with plotly.

const EXIT_VARIABLES = { agree_short: "--exit-short", agree_think: "--exit-think", transfer: "--exit-transfer" };
const ROLE_VARIABLES = { mai: "--mai", full_rt: "--full-rt", large: "--large", small: "--small", other: "--other" };
const SYMBOLS = { mai: "diamond", full_rt: "square", large: "circle", small: "triangle-up", other: "pentagon" };
const ROLE_NAMES = { mai: "MAI", full_rt: "Full RT", large: "large model", small: "small model", other: "other models" };
const FONT = 'system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif';

const css = (variable) => getComputedStyle(document.documentElement).getPropertyValue(variable).trim();
const exitColour = (exit) => css(EXIT_VARIABLES[exit] ?? "--exit-middle");
const roleColour = (role) => css(ROLE_VARIABLES[role] ?? "--other");

/** Return a colour "#rrggbb" with an opacity. */
function faded(colour, opacity) {
  const [r, g, b] = [1, 3, 5].map((start) => parseInt(colour.slice(start, start + 2), 16));
  return `rgba(${r},${g},${b},${opacity})`;
}

/** Escape a text for plotly, which reads a subset of HTML. */
const label = (text) => String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");

/** Run plotly's script. `code`: the promise of its text. */
async function loadPlotly(code) {
  const script = make("script");
  script.nonce = NONCE;
  script.textContent = await code;
  await pause();
  document.head.append(script);
}

function axis(more = {}) {
  return {
    gridcolor: css("--line"), linecolor: css("--strong"), zeroline: false, ticks: "outside", ticklen: 4,
    tickcolor: css("--strong"), fixedrange: true, showline: true, ...more,
    title: { text: more.title ?? "", standoff: 8, font: { size: 12, color: css("--quiet") } },
  };
}

/** Return the width of a left margin for names of rows. plotly's own measurement draws a figure several times. */
const widthOf = (names) => 18 + 6.7 * Math.max(...names.map((name) => name.replace(/&\w+;|\u200b/g, "").length));

function note(text, more = {}) {
  return { text, showarrow: false, font: { size: 12, color: css("--ink") }, bgcolor: faded(css("--card"), 0.75), ...more };
}

/** Draw a figure into `chart-<key>`, `height` pixels high. */
async function drawChart(key, traces, layout, height = 330) {
  const element = byId(`chart-${key}`);
  for (const empty of element.querySelectorAll(".empty")) empty.remove();
  element.style.height = `${height}px`;
  const whole = {
    margin: { l: 10, r: 14, t: 8, b: 10 }, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", dragmode: false,
    font: { family: FONT, size: 12, color: css("--ink") }, showlegend: false, hovermode: "closest", height,
    legend: { orientation: "h", y: 1.02, yanchor: "bottom", x: 0, itemclick: false, itemdoubleclick: false },
    hoverlabel: { bgcolor: css("--card"), bordercolor: css("--strong"), font: { family: FONT, size: 12, color: css("--ink") }, align: "left" },
    ...layout,
  };
  await Plotly.react(element, traces, whole, { displayModeBar: false, responsive: true });
  return element;
}

/** Write a sentence in the place of a figure. */
function drawNothing(key, sentence) {
  const element = byId(`chart-${key}`);
  if (element.data) Plotly.purge(element);
  element.style.height = "auto";
  element.replaceChildren(make("p", { class: "empty" }, sentence));
}

const showCard = (key, isShown) => { byId(`card-${key}`).hidden = !isShown; };

/** Fill the select of a card, and return the chosen number. One choice needs no select. */
function choice(key, names, redraw) {
  const box = byId(`card-${key}`).querySelector(".choice");
  const select = box.querySelector("select");
  const shown = [...select.options].map((one) => one.textContent);
  if (shown.length !== names.length || names.some((name, i) => name !== shown[i])) {
    select.replaceChildren(...names.map((name, i) => option(i, name)));
  }
  box.hidden = names.length < 2;
  select.onchange = redraw;
  return Number(select.value || 0);
}
