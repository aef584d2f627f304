// Shows the figures, which Python built, in the colours of the theme. A click on a figure shows its samples.

const FONT = 'system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif';
let charts = [];

/** Run plotly's script. `code`: the promise of its text. */
async function loadPlotly(code) {
  const script = make("script");
  script.nonce = NONCE;
  script.textContent = await code;
  await pause();
  document.head.append(script);
}

/** Return the colour of `var(--name)` or of `var(--name,opacity)`, and any other value as it is. */
function themed(value) {
  const [, name, opacity] = /^var\((--[\w-]+),?(.*)\)$/.exec(value) ?? [];
  const colour = name && getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  if (!colour) return value;
  return opacity ? colour + Math.round(255 * opacity).toString(16).padStart(2, "0") : colour;
}

/** Return a copy of a part of a figure with the colours of the theme. */
const inTheme = (part) => JSON.parse(JSON.stringify(part), (_, value) => (typeof value === "string" ? themed(value) : value));

/** Return what all figures share. */
function template() {
  const text = { size: 12, color: "var(--ink)", family: FONT };
  const axis = {
    gridcolor: "var(--line)", linecolor: "var(--strong)", tickcolor: "var(--strong)", ticks: "outside", ticklen: 4, showline: true,
    zeroline: false, fixedrange: true, title: { standoff: 8, font: { size: 12, color: "var(--quiet)" } },
  };
  return inTheme({ layout: {
    font: text, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", dragmode: false, showlegend: false, hovermode: "closest",
    hoverlabel: { bgcolor: "var(--card)", bordercolor: "var(--strong)", font: text, align: "left" }, xaxis: axis, yaxis: axis,
    legend: { orientation: "h", x: 0, y: 1, yanchor: "bottom", traceorder: "normal", itemclick: false, itemdoubleclick: false },
    annotationdefaults: { showarrow: false, font: text, bgcolor: "var(--card,0.75)" },
  } });
}

/** Show the chosen figure of a card with its numbers in words, or the sentence that stands in its place. */
async function drawCard(card) {
  const element = card.querySelector(".chart");
  const found = charts.filter((chart) => card.id === `card-${chart.card}` && ["", byId("benchmark").value].includes(chart.benchmark));
  card.hidden = !found.length;
  if (!found.length) return;
  const { figure, numbers } = found[choice(card, found.map((chart) => chart.choice), () => drawCard(card))] ?? found[0];
  element.setAttribute("aria-label", `${card.querySelector("h3").textContent}. ${numbers.join(". ")}`);
  card.querySelector("ul").replaceChildren(...numbers.map((words) => make("li", {}, words)));
  card.querySelector(".empty").textContent = figure ? "" : numbers[0];
  for (const each of [element, card.querySelector("details")]) each.hidden = !figure;
  if (!figure) return;
  const { data, layout } = inTheme(figure);
  if (layout.meta && element.clientWidth < 600) data[0].node.label = layout.meta; // names of the flow that fit on a phone
  element.style.height = `${layout.height}px`;
  await Plotly.react(element, data, { ...layout, template: template() }, { displayModeBar: false, responsive: true });
  element.removeAllListeners("plotly_click");
  element.on("plotly_click", ({ points: [{ customdata }] }) => { if (customdata) showSamples(customdata); });
}

/** Fill the select of a card, and return the chosen number. One choice needs no select. */
function choice(card, names, redraw) {
  const box = card.querySelector(".choice"), select = box.querySelector("select");
  const shown = [...select.options].map((one) => one.textContent);
  if (shown.length !== names.length || names.some((name, i) => name !== shown[i])) {
    select.replaceChildren(...names.map((name, i) => option(i, name)));
  }
  box.hidden = names.length < 2;
  select.onchange = redraw;
  return Number(select.value || 0);
}

/** Show all figures, one after another, so that the page answers in between. */
async function drawAll() {
  for (const card of document.querySelectorAll(".card")) {
    await drawCard(card);
    await pause();
  }
}
