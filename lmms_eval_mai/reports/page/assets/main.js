// Starts the page: first the samples, then the figures.

function isDark() {
  const chosen = document.documentElement.dataset.theme;
  return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
}

function nameTheme() {
  byId("theme").textContent = isDark() ? "Light" : "Dark";
}

byId("theme").addEventListener("click", () => {
  document.documentElement.dataset.theme = isDark() ? "light" : "dark";
  nameTheme();
  redraw();
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { nameTheme(); redraw(); });
byId("benchmark").addEventListener("change", () => redraw());

let chosenBeforePrint = "";
addEventListener("beforeprint", () => {
  chosenBeforePrint = document.documentElement.dataset.theme ?? "";
  for (const one of document.querySelectorAll("details:not(.numbers)")) one.open = true;
  if (isDark()) { document.documentElement.dataset.theme = "light"; redraw(); }
});
addEventListener("afterprint", () => {
  if (chosenBeforePrint) document.documentElement.dataset.theme = chosenBeforePrint;
  else delete document.documentElement.dataset.theme;
  redraw();
});

async function redraw() {
  if (window.Plotly) await drawAll();
}

async function start() {
  nameTheme();
  if (!window.DecompressionStream) {
    byId("too-old").hidden = false;
    return;
  }
  const plotly = textOf("plotly"); // is decompressed beside the samples
  byId("choose-benchmark").hidden = byId("benchmark").options.length < 2;
  [charts] = await Promise.all([valueOf("charts"), loadIndex()]);
  await startBrowser();
  performance.mark("samples");
  document.body.dataset.ready = "samples";
  await pause();
  await loadPlotly(plotly);
  await drawAll();
  performance.mark("figures");
  document.body.dataset.ready = "all";
}

start();
