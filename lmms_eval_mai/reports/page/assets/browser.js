// The browser of samples: filters, a list that draws only its visible rows, one open sample, keys and links.

const ROW = 52; // height of a row in pixels, as in the style
const NAMES = ["task", "method", "exit", "answer", "effect", "q"];
const browser = { found: [], open: null, turn: 0 };
const form = () => byId("filters").elements;
const filter = () => Object.fromEntries(NAMES.map((name) => [name, form()[name].value]));

async function startBrowser() {
  if (!store.runs.length) {
    byId("no-samples").hidden = false;
    return;
  }
  byId("browser").hidden = false;
  const unique = (values) => [...new Set(values)];
  const tasks = unique(store.runs.map((run) => run.benchmark)), methods = unique(store.runs.map((run) => run.method));
  const exits = ["agree_short", "confident", "agree_think", "transfer", "small", "large"].filter((exit) => store.runs.some((run) => run.columns.exit.includes(exit)));
  if (store.runs.some((run) => run.mode === "cascade")) exits.push(DISAGREE);
  fill("task", tasks, tasks.length > 1);
  fill("method", methods, true);
  fill("exit", exits, true);
  form().method.value = methods[0];
  byId("filters").addEventListener("submit", (event) => event.preventDefault());
  byId("filters").addEventListener("input", (event) => later(event.target.name === "q" ? 150 : 0));
  byId("list").addEventListener("scroll", drawRows);
  byId("list").addEventListener("click", (event) => {
    const row = event.target.closest(".row");
    if (row !== null) openSample(browser.found[Number(row.dataset.place)]);
  });
  byId("detail").addEventListener("click", (event) => {
    if (event.target.id === "close") closeSample();
    if (event.target.id === "copy") copyLink(event.target);
  });
  new ResizeObserver(drawRows).observe(byId("list"));
  addEventListener("hashchange", readHash);
  addEventListener("popstate", readHash);
  addEventListener("keydown", onKey);
  if (!(await readHash())) await search();
}

function fill(name, values, hasAll) {
  form()[name].replaceChildren(...(hasAll ? [option("", "all")] : []), ...values.map((value) => option(value, value)));
}

let timer = 0;
function later(ms) {
  clearTimeout(timer);
  timer = setTimeout(async () => { await search(); writeHash(); }, ms);
}

/** Apply the filters. A newer search makes an older one stop. */
async function search() {
  const turn = ++browser.turn;
  const found = await filtered(filter());
  if (turn !== browser.turn) return;
  browser.found = found;
  const all = store.runs.reduce((sum, run) => sum + run.columns.ids.length, 0);
  byId("number").value = `${count(found.length)} of ${count(all)} samples`;
  byId("rows").style.height = `${ROW * found.length}px`;
  const place = found.indexOf(browser.open);
  byId("list").scrollTop = place > 0 ? ROW * (place - 2) : 0;
  drawRows();
}

function drawRows() {
  const list = byId("list");
  const first = Math.max(0, Math.floor(list.scrollTop / ROW) - 5);
  const last = Math.min(browser.found.length, Math.ceil((list.scrollTop + list.clientHeight) / ROW) + 5);
  const hasSeveralRuns = !(form().task.value && form().method.value) && store.runs.length > 1;
  const rows = [];
  for (let place = first; place < last; place++) rows.push(rowNode(browser.found[place], place, hasSeveralRuns));
  byId("rows").replaceChildren(...rows);
}

function rowNode(sample, place, hasSeveralRuns) {
  const one = listed(sample), run = runOf(sample);
  const isOpen = sample === browser.open;
  if (isOpen) byId("list").setAttribute("aria-activedescendant", `row-${place}`);
  const row = make("div", { class: "row", role: "option", id: `row-${place}`, "data-place": place, "aria-selected": isOpen, "aria-setsize": browser.found.length, "aria-posinset": place + 1 },
    make("div", { class: "top" }, make("span", {}, `#${one.id}`), exitTag(one.exit), verdict(one), effectTag(one.effect),
      hasSeveralRuns ? make("span", { class: "run" }, `${run.benchmark} ${run.short}`) : null,
      make("span", { class: "tokens" }, one.tokens === null ? "" : `${count(one.tokens)} tokens`)),
    make("div", { class: "what" }, shortened((one.question ?? "").split("\n")[0], 120)));
  row.style.top = `${ROW * place}px`;
  return row;
}

/** Open a sample. `isNew`: add an entry to the history, so that Back closes it on a phone. */
async function openSample(sample, isNew = browser.open === null) {
  browser.open = sample;
  document.body.classList.add("reading");
  drawRows();
  writeHash(isNew);
  const nodes = await detailNodes(sample, filter().q.trim().toLowerCase());
  if (browser.open !== sample) return;
  byId("detail").replaceChildren(...nodes);
  byId("detail").scrollTop = 0;
}

function closeSample() {
  if (browser.open === null) return;
  browser.open = null;
  document.body.classList.remove("reading");
  byId("detail").replaceChildren(make("p", { class: "note" }, "Choose a sample."));
  byId("list").removeAttribute("aria-activedescendant");
  drawRows();
  writeHash();
}

/** Open the sample after the open one, or before it. */
function move(step) {
  if (!browser.found.length) return;
  const place = browser.found.indexOf(browser.open);
  const next = Math.min(browser.found.length - 1, Math.max(0, place < 0 ? 0 : place + step));
  const list = byId("list");
  if (ROW * next < list.scrollTop) list.scrollTop = ROW * next;
  if (ROW * (next + 1) > list.scrollTop + list.clientHeight) list.scrollTop = ROW * (next + 1) - list.clientHeight;
  openSample(browser.found[next]);
}

const STEPS = { j: 1, k: -1, ArrowDown: 1, ArrowUp: -1 };

function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const isTyping = event.target.closest("input, select, textarea") !== null;
  if (event.key === "Escape") {
    if (!isTyping) return closeSample();
    event.preventDefault(); // the search keeps its text
    event.target.blur();
  } else if (event.key === "/" && !isTyping) {
    event.preventDefault();
    byId("samples").scrollIntoView();
    form().q.focus();
  } else if (event.key in STEPS && !isTyping) {
    const isArrow = event.key.startsWith("Arrow");
    if (isArrow && event.target.closest("#list") === null) return; // elsewhere, arrows scroll
    event.preventDefault();
    if (byId("browser").getBoundingClientRect().bottom < 0 || byId("browser").getBoundingClientRect().top > innerHeight) byId("samples").scrollIntoView();
    move(STEPS[event.key]);
  }
}

// --- links ---

function writeHash(isNew = false) {
  const state = new URLSearchParams();
  if (browser.open !== null) state.set("sample", keyOf(browser.open));
  for (const [name, value] of Object.entries(filter())) if (value !== "") state.set(name, value);
  const hash = `#${state}`;
  if (hash === location.hash) return;
  history[isNew ? "pushState" : "replaceState"](null, "", hash);
}

/** Apply the link. Returns false if it is not about samples, such as #tables. */
async function readHash() {
  const state = new URLSearchParams(location.hash.slice(1));
  if (![...state.keys()].some((name) => name === "sample" || NAMES.includes(name)) || location.hash.indexOf("=") < 0) {
    if (location.hash === "" && browser.open !== null) closeSample();
    return false;
  }
  const sample = sampleOfKey(state.get("sample") ?? "");
  const isLinkOnly = sample !== null && NAMES.every((name) => !state.has(name));
  for (const name of NAMES) form()[name].value = state.get(name) ?? "";
  if (isLinkOnly) {
    form().method.value = runOf(sample).method;
    form().task.value = runOf(sample).benchmark;
  }
  if (form().task.selectedIndex < 0) form().task.selectedIndex = 0; // a single task has no "all"
  for (const name of ["method", "exit", "answer", "effect"]) if (form()[name].selectedIndex < 0) form()[name].value = "";
  const isFirst = browser.turn === 0;
  browser.open = sample;
  await search();
  if (sample === null && state.has("sample")) byId("number").value += `. The page has no sample ${state.get("sample")}`;
  if (sample === null) closeSample(); else await openSample(sample, false);
  if (isFirst) byId("samples").scrollIntoView();
  return true;
}

/** Show the samples that a figure points at. */
async function showSamples(wanted) {
  for (const name of NAMES) form()[name].value = wanted[name] ?? "";
  if (form().task.selectedIndex < 0) form().task.selectedIndex = 0;
  browser.open = null;
  document.body.classList.remove("reading");
  await search();
  writeHash();
  byId("samples").scrollIntoView({ behavior: matchMedia("(prefers-reduced-motion)").matches ? "instant" : "smooth" });
}

async function copyLink(button) {
  const link = `${location.href.split("#")[0]}#sample=${encodeURIComponent(keyOf(browser.open))}`;
  try {
    await navigator.clipboard.writeText(link);
    button.textContent = "Copied";
  } catch { // pages from disk may not write to the clipboard
    prompt("Copy this link:", link);
  }
}
