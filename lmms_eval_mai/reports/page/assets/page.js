"use strict";
// The page: figures that Python built, and the samples of a run with their calls. Texts of models and data sets are
// hostile: set them with `textContent` only.

const NONCE = document.currentScript.nonce; // scripts without it are refused
const SHOWN = 200; // samples in the list until the user asks for more
const page = { charts: [], runs: [], samples: [], images: null, found: [], limit: SHOWN, open: null, turn: 0 };

const byId = (id) => document.getElementById(id);
const form = () => byId("filters").elements;
const whole = new Intl.NumberFormat("en");

/** Return a new element. Children are nodes or texts. */
function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children.filter((child) => child !== null));
  return element;
}

const option = (value, name) => make("option", { value }, name);

/** Return the text of a block of the page (a promise), or null. A block is read once. */
function textOf(name) {
  const block = byId(`block-${name}`);
  if (block === null) return null;
  const text = atob(block.textContent);
  const bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
  block.remove(); // its text needs memory
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
}

async function valueOf(name) {
  const text = await textOf(name);
  return text === null ? null : JSON.parse(text);
}

// --- figures ---

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
  const font = { size: 12, color: "var(--ink)", family: 'system-ui, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif' };
  const axis = {
    gridcolor: "var(--line)", linecolor: "var(--strong)", ticks: "outside", ticklen: 4, showline: true, zeroline: false,
    fixedrange: true, title: { standoff: 8 },
  };
  return inTheme({ layout: {
    font, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", dragmode: false, showlegend: false,
    hoverlabel: { bgcolor: "var(--card)", bordercolor: "var(--strong)", font, align: "left" }, xaxis: axis, yaxis: axis,
    hovermode: "closest", legend: { orientation: "h", x: 0, y: 1, yanchor: "bottom", itemclick: false, itemdoubleclick: false },
  } });
}

/** Show the chosen figure of a card, with its numbers in words. */
async function drawCard(card) {
  const charts = page.charts.filter((chart) => card.id === `card-${chart.card}`);
  const select = card.querySelector("select"), element = card.querySelector(".chart");
  card.hidden = !charts.length;
  if (!charts.length) return;
  if (!select.options.length) {
    select.append(...charts.map((chart, place) => option(place, chart.title)));
    select.onchange = () => drawCard(card);
  }
  const { figure, words } = charts[select.value];
  element.setAttribute("aria-label", `${card.querySelector("h3").textContent}. ${words.join(". ")}`);
  card.querySelector("ul").replaceChildren(...words.map((text) => make("li", {}, text)));
  const { data, layout } = inTheme(figure);
  element.style.height = `${layout.height}px`;
  await Plotly.react(element, data, { ...layout, template: template() }, { displayModeBar: false, responsive: true });
  element.removeAllListeners("plotly_click");
  element.on("plotly_click", ({ points: [{ customdata }] }) => { if (customdata) showSamples(customdata); });
}

async function drawAll() {
  if (!window.Plotly) return;
  for (const card of document.querySelectorAll(".card")) await drawCard(card);
}

// --- samples ---

/** Set filters, and show the list. Filters that are not named are empty. */
async function showSamples(filters) {
  for (const name of ["run", "exit", "answer", "effect"]) form()[name].value = filters[name] ?? "";
  const run = page.runs.findIndex((one) => one.task === filters.task && one.method === filters.method);
  if (run >= 0) form().run.value = run;
  await search();
  byId("samples").scrollIntoView();
}

/** Apply the filters. A newer search makes an older one stop. */
async function search() {
  const turn = ++page.turn, filters = form(), run = Number(filters.run.value || 0);
  const samples = await (page.samples[run] ??= valueOf(`samples-${run}`));
  if (turn !== page.turn) return;
  const exits = filters.exit.value === "check_failed" ? page.runs[run].exits.slice(1) : [filters.exit.value];
  const isRight = (sample) => (sample.score === null ? "" : sample.score >= 0.5 ? "right" : "wrong");
  page.found = samples.filter((sample) => (!filters.exit.value || exits.includes(sample.exit))
    && (!filters.answer.value || isRight(sample) === filters.answer.value)
    && (!filters.effect.value || sample.effect === filters.effect.value));
  byId("number").value = `${whole.format(page.found.length)} of ${whole.format(samples.length)} samples`;
  page.limit = SHOWN;
  drawList();
}

function drawList() {
  const rows = page.found.slice(0, page.limit).map((sample) => {
    const row = make("button", { type: "button", class: "row" }, ...marks(sample), make("div", {}, sample.question.split("\n")[0].slice(0, 120)));
    row.onclick = () => openSample(sample, row);
    return row;
  });
  if (page.found.length > page.limit) {
    const more = make("button", { type: "button", class: "row" }, "More");
    more.onclick = () => { page.limit += SHOWN; drawList(); };
    rows.push(more);
  }
  byId("list").replaceChildren(...rows);
}

/** Return number, exit, score and effect of a sample. */
function marks(sample) {
  const score = sample.score === null ? "no score" : sample.score === 1 ? "right" : sample.score === 0 ? "wrong" : `score ${sample.score}`;
  const mark = (name, text) => (text ? make("span", { class: `mark ${name}` }, text) : null);
  return [mark("", `#${sample.id}`), mark(`exit ${sample.exit}`, sample.exit), mark(score, score), mark("", sample.effect)];
}

/** Show a sample: its pictures, question, answers, checks and calls. */
async function openSample(sample, row) {
  page.open = sample;
  for (const each of byId("list").children) each.classList.toggle("open", each === row);
  page.images ??= valueOf("images");
  const run = page.runs[Number(form().run.value || 0)], images = await page.images;
  if (page.open !== sample) return;
  const pictures = (images?.of[run.images]?.[sample.id] ?? []).map((number) =>
    make("img", { src: `data:image/webp;base64,${images.data[number]}`, alt: "Image of the document, reduced" }));
  const pair = (name, text) => [make("dt", {}, name), make("dd", {}, text)];
  const checks = sample.checks.flatMap((check) => pair("check", `${check.of}: ${check.a ?? "(unreadable)"} and ${check.b ?? "(unreadable)"} ${check.agree ? "agree" : "do not agree"}`));
  byId("detail").replaceChildren(
    make("p", {}, ...marks(sample)), ...pictures,
    make("h4", {}, "Question"), make("pre", {}, sample.question),
    make("dl", {}, ...pair("gold answer", sample.gold), ...pair("scored answer", sample.answer), ...checks, ...(sample.kind ? pair("kind", sample.kind) : [])),
    make("h4", {}, sample.calls.length ? "Calls" : "The trace has no calls"),
    ...sample.calls.map((call) => make("div", { class: `call ${call.side}` },
      make("p", { class: "note" }, `${call.side} model, ${call.prompt}: ${whole.format(call.tokens)} tokens${call.seconds === null ? "" : `, ${call.seconds.toFixed(3)} s`}${call.cut ? ", cut off" : ""}`),
      make("pre", {}, call.text))),
  );
  byId("detail").scrollTop = 0;
}

async function startSamples() {
  byId("no-samples").hidden = page.runs.length > 0;
  byId("browser").hidden = !page.runs.length;
  if (!page.runs.length) return;
  const exits = new Set(page.runs.flatMap((run) => run.exits));
  form().run.append(...page.runs.map((run, place) => option(place, `${run.task}: ${run.method}`)));
  form().exit.append(...[...exits, "check_failed"].map((exit) => option(exit, exit)));
  byId("filters").addEventListener("input", search);
  await search();
}

// --- the page ---

function isDark() {
  const chosen = document.documentElement.dataset.theme;
  return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
}

byId("theme").addEventListener("click", () => {
  document.documentElement.dataset.theme = isDark() ? "light" : "dark";
  drawAll();
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);

async function start() {
  if (!window.DecompressionStream) {
    byId("too-old").hidden = false;
    return;
  }
  [page.charts, page.runs] = await Promise.all([valueOf("charts"), valueOf("runs")]);
  await startSamples();
  const script = make("script");
  script.nonce = NONCE;
  script.textContent = await textOf("plotly");
  document.head.append(script);
  await drawAll();
  document.body.dataset.ready = "all";
}

start();
