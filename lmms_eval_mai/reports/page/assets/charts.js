// The other figures.

const figuresOf = (kind) => FIGURES.figures.filter((one) => one.kind === kind && one.benchmark === chosenBenchmark());
const chosenBenchmark = () => byId("benchmark").value;
const EXITS = ["agree_short", "agree_think", "transfer"];

/** Return the flows of all benchmarks, or of one, with their methods. */
function flows(benchmark = null) {
  const all = FIGURES.figures.filter((one) => one.kind === "flow").map((one, i) => ({ ...one, method: FIGURES.flows[i] }));
  return all.filter((one) => benchmark === null || one.benchmark === benchmark);
}

async function drawFlow() {
  const found = flows(chosenBenchmark());
  showCard("flow", found.length > 0);
  if (!found.length) return;
  const flow = found[choice("flow", found.map((one) => one.method), drawFlow)] ?? found[0];
  const bands = flow.data.filter((one) => one.documents > 0);
  const names = [...new Set(bands.flatMap((one) => [one.source, one.target]))];
  const into = (name) => bands.find((one) => one.target === name);
  const all = bands.filter((one) => one.source === "documents").reduce((sum, one) => sum + one.documents, 0);
  const isNarrow = byId("chart-flow").clientWidth < 600; // the bands are too short for names of their own
  const element = await drawChart("flow", [{
    type: "sankey", arrangement: "fixed", orientation: "h",
    node: {
      label: names.map((name) => nodeName(name, into(name), all, isNarrow)),
      color: names.map((name) => (name === "documents" ? css("--strong") : exitColour(name))),
      pad: 34, thickness: 12, line: { width: 0 }, hoverinfo: "none",
    },
    link: {
      source: bands.map((one) => names.indexOf(one.source)), target: bands.map((one) => names.indexOf(one.target)),
      value: bands.map((one) => one.documents), color: bands.map((one) => faded(exitColour(one.target), 0.38)),
      customdata: bands.map((one) => `${one.source} to ${one.target}<br>${count(one.documents)} documents, ${count(one.right)} right (${percent(one.right, one.documents)})`),
      hovertemplate: "%{customdata}<extra></extra>",
    },
  }], { margin: { l: 4, r: 4, t: 14, b: 14 }, font: { family: FONT, size: 12.5, color: css("--ink") } }, isNarrow ? 340 : 300);
  const write = () => nameBands(element, bands, isNarrow);
  element.removeAllListeners("plotly_afterplot");
  element.on("plotly_afterplot", write);
  write();
  element.removeAllListeners("plotly_click");
  element.on("plotly_click", (event) => {
    const exit = bands[event.points[0].pointNumber]?.target;
    const method = flow.method, task = FIGURES.names[flow.benchmark];
    showSamples({ method, task, exit: EXITS.includes(exit) ? exit : "" });
  });
}

function nodeName(name, band, all, isNarrow) {
  if (name === "documents") return `${count(all)} documents`;
  if (name === "disagree" && isNarrow) return ""; // on its band
  const right = isNarrow ? `<br>${percent(band.right, band.documents)} right` : "";
  return `${name} ${count(band.documents)} (${percent(band.documents, all)})${right}`;
}

/** Write the share of right answers on each band. */
function nameBands(element, bands, isNarrow) {
  for (const old of element.querySelectorAll(".band-name")) old.remove();
  element.querySelectorAll("path.sankey-link").forEach((path, i) => {
    const band = bands[path.__data__?.link?.pointNumber ?? i];
    if (isNarrow && band.target !== "disagree") return;
    const box = path.getBBox();
    const text = document.createElementNS("http://www.w3.org/2000/svg", "text");
    text.setAttribute("class", "band-name");
    text.setAttribute("x", box.x + box.width / 2);
    text.setAttribute("y", box.y + box.height / 2);
    text.textContent = isNarrow ? `${count(band.documents)} disagree` : `${percent(band.right, band.documents)} right`;
    path.parentNode.append(text);
  });
}

async function drawDifferences() {
  const benchmark = FIGURES.names[chosenBenchmark()];
  const all = FIGURES.differences.filter((one) => one.benchmark === benchmark);
  const cascades = [...new Set(all.map((one) => one.cascade))];
  showCard("differences", cascades.length > 0);
  if (!cascades.length) return;
  const cascade = cascades[choice("differences", cascades, drawDifferences)] ?? cascades[0];
  const rows = all.filter((one) => one.cascade === cascade).reverse();
  const role = (row) => FIGURES.roles[row.against] ?? "other";
  const short = rows.map((row, i) => `${label(FIGURES.short[row.against] ?? row.against)}${"\u200b".repeat(i)}`); // categories must differ
  const ends = rows.flatMap(({ difference: one }) => [one.low ?? one.value, one.high ?? one.value, 0]);
  const room = 0.06 * (Math.max(...ends) - Math.min(...ends)) || 1;
  await drawChart("differences", [{
    type: "scatter", mode: "markers", y: short, x: rows.map((row) => row.difference.value),
    marker: { size: 10, color: rows.map((row) => roleColour(role(row))), symbol: rows.map((row) => SYMBOLS[role(row)]) },
    error_x: {
      type: "data", symmetric: false, thickness: 1.5, width: 4, color: css("--quiet"),
      array: rows.map(({ difference: one }) => (one.high ?? one.value) - one.value),
      arrayminus: rows.map(({ difference: one }) => one.value - (one.low ?? one.value)),
    },
    text: rows.map(({ against, n, p, difference: one }) => {
      const interval = one.low === null ? "" : ` (${one.low.toFixed(2)} to ${one.high.toFixed(2)})`;
      return `<b>${label(against)}</b><br>${one.value.toFixed(2)} points${interval}<br>n = ${count(n)}${p === null ? "" : `, p ${p < 0.001 ? "< 0.001" : `= ${p.toFixed(3)}`}`}`;
    }),
    hovertemplate: "%{text}<extra></extra>",
  }], {
    xaxis: axis({ title: "points", range: [Math.min(...ends) - room, Math.max(...ends) + room], zeroline: true, zerolinecolor: css("--quiet") }),
    yaxis: axis({ showline: false, ticks: "", showgrid: false }), margin: { l: widthOf(short), r: 14, t: 8, b: 42 },
  }, Math.max(190, 80 + 27 * rows.length));
}

async function drawExits() {
  const found = flows().reverse();
  showCard("exits", found.length > 0);
  if (!found.length) return;
  const rows = found.map((flow, i) => `${label(FIGURES.names[flow.benchmark])} ${label(FIGURES.short[flow.method] ?? flow.method)}${"\u200b".repeat(i)}`);
  const band = (flow, exit) => flow.data.find((one) => one.target === exit) ?? { documents: 0, right: 0 };
  const all = (flow) => EXITS.reduce((sum, exit) => sum + band(flow, exit).documents, 0);
  await drawChart("exits", EXITS.map((exit) => ({
    type: "bar", orientation: "h", name: exit, y: rows, x: found.map((flow) => (100 * band(flow, exit).documents) / all(flow)),
    marker: { color: exitColour(exit), line: { color: css("--card"), width: 1 } }, insidetextanchor: "middle", textangle: 0,
    text: found.map((flow) => `${percent(band(flow, exit).documents, all(flow))}`), textposition: "inside",
    textfont: { color: css(EXIT_VARIABLES[exit].replace("exit", "on")), size: 12 },
    customdata: found.map((flow) => `<b>${exit}</b>: ${count(band(flow, exit).documents)} of ${count(all(flow))}<br>${percent(band(flow, exit).right, band(flow, exit).documents)} right`),
    hovertemplate: "%{customdata}<extra></extra>",
  })), {
    barmode: "stack", bargap: 0.35, showlegend: true, legend: { orientation: "h", y: 1.02, yanchor: "bottom", x: 0, traceorder: "normal" },
    uniformtext: { mode: "hide", minsize: 11 }, margin: { l: widthOf(rows), r: 18, t: 34, b: 48 },
    xaxis: axis({ title: "documents, %", range: [0, 100] }), yaxis: axis({ showline: false, ticks: "", showgrid: false }),
  }, (byId("chart-exits").clientWidth < 450 ? 150 : 116) + 42 * rows.length); // a narrow legend has three lines
}

async function drawHistogram() {
  const [figure] = figuresOf("histogram");
  showCard("histogram", Boolean(figure));
  if (!figure) return;
  const methods = [...new Set(figure.data.map((one) => one.method))];
  const lows = [...new Set(figure.data.map((one) => one.low))].sort((a, b) => a - b);
  const bins = lows[0] === 0 ? [0, ...range(lows[1] ?? 1, lows.at(-1))] : range(lows[0], lows.at(-1));
  const names = bins.map((low) => (low < 2 ? `${low}` : `${count(low)}–${count(2 * low - 1)}`));
  const layout = { margin: { l: 92, r: 14, t: 8, b: 48 }, annotations: [], bargap: 0.12 };
  const traces = methods.map((method, row) => {
    const those = figure.data.filter((one) => one.method === method);
    const all = those.reduce((sum, one) => sum + one.documents, 0);
    const suffix = row ? row + 1 : "";
    const top = 1 - row / methods.length, height = 1 / methods.length;
    layout[`yaxis${suffix}`] = axis({ domain: [top - 0.8 * height, top], range: [0, 105], showticklabels: false, ticks: "", showgrid: false, anchor: "x" });
    layout.annotations.push(note(label(FIGURES.short[method] ?? method), { xref: "paper", yref: "paper", x: 0, xshift: -8, y: top - 0.8 * height, xanchor: "right", yanchor: "bottom" }));
    return {
      type: "bar", x: bins.map((_, i) => i), y: bins.map((low) => (100 * (those.find((one) => one.low === low)?.documents ?? 0)) / all),
      yaxis: `y${suffix}`, marker: { color: roleColour(FIGURES.roles[method]) },
      text: bins.map((low, i) => `<b>${label(method)}</b><br>${names[i]} tokens: ${count(those.find((one) => one.low === low)?.documents ?? 0)} of ${count(all)} documents`),
      hovertemplate: "%{text}<extra></extra>", textposition: "none",
    };
  });
  layout.xaxis = axis({ title: "output tokens", showgrid: false, tickvals: bins.map((_, i) => i), ticktext: names, range: [-0.6, bins.length - 0.4], anchor: `y${methods.length > 1 ? methods.length : ""}` });
  await drawChart("histogram", traces, layout, 80 + 38 * methods.length);
}

/** Return the powers of 2 from `low` to `high`. */
function range(low, high) {
  const found = [];
  for (let value = Math.max(1, low); value <= high; value *= 2) found.push(value);
  return found;
}

async function drawOccupancy() {
  const of = (all) => all.filter((one) => one.benchmark === chosenBenchmark());
  const found = of(FIGURES.occupancy), without = of(FIGURES.without_times);
  showCard("occupancy", found.length + without.length > 0);
  if (!found.length) {
    if (without.length) drawNothing("occupancy", "The traces of these runs have no start times of calls: an older version made the runs, or other runs made their calls.");
    return;
  }
  const run = found[choice("occupancy", found.map((one) => one.method), drawOccupancy)] ?? found[0];
  const sides = Object.keys(run.sides).reverse(); // the large model on top
  const layout = { margin: { l: 46, r: 14, t: 12, b: 42 }, annotations: [] };
  const traces = sides.map((side, row) => {
    const suffix = row ? row + 1 : "";
    const { in_flight: calls, busy } = run.sides[side];
    const top = 1 - row / sides.length, bottom = top - 0.8 / sides.length;
    layout[`yaxis${suffix}`] = axis({ domain: [bottom, top], rangemode: "tozero", range: [0, 1.25 * Math.max(1, ...calls)], nticks: 4 });
    layout.annotations.push(note(`${side} model: ${count(run.sides[side].calls)} calls, busy ${percent(busy, 1)}`, { xref: "paper", yref: "paper", x: 0.01, y: top, xanchor: "left", yanchor: "top" }));
    return {
      x: calls.map((_, i) => (run.seconds * i) / calls.length), y: calls, yaxis: `y${suffix}`, mode: "lines", line: { color: roleColour(side), width: 1.2, shape: "hv" },
      fill: "tozeroy", fillcolor: faded(roleColour(side), 0.3), hovertemplate: `%{y:.1f} calls at %{x:.1f} s<extra>${side}</extra>`,
    };
  });
  layout.xaxis = axis({ title: "seconds since the first call", range: [0, run.seconds], anchor: `y${sides.length > 1 ? sides.length : ""}` });
  await drawChart("occupancy", traces, layout, 110 + 110 * sides.length);
}

async function drawRules() {
  const found = figuresOf("curve");
  showCard("rules", found.length > 0);
  if (!found.length) return;
  const curve = found[choice("rules", found.map((one) => one.title.split(", ").slice(2).join(", ")), drawRules)] ?? found[0];
  const points = [...curve.data].sort((a, b) => a.tokens - b.tokens);
  const value = (one) => one.rule.split("=").at(-1);
  const names = points.map((one) => { // rules with one outcome share a name, at the first of them
    const same = points.filter((other) => other.tokens === one.tokens && other.score === one.score);
    return same[0] === one ? label(same.map(value).join(", ")) : "";
  });
  const own = points.filter((one) => one.of_the_run);
  const text = (one) => `<b>${label(one.rule)}</b><br>score ${one.score.toFixed(2)}<br>${one.tokens.toFixed(1)} output tokens per document`;
  await drawChart("rules", [
    { x: own.map((one) => one.tokens), y: own.map((one) => one.score), mode: "markers", marker: { symbol: "circle-open", size: 20, color: css("--ink"), line: { width: 1.5 } }, hoverinfo: "skip" },
    {
      x: points.map((one) => one.tokens), y: points.map((one) => one.score), mode: "lines+markers+text", marker: { size: 9, color: css("--mai") }, line: { color: css("--mai"), width: 1.5 },
      text: names, textposition: points.map((one) => (one.tokens > (points[0].tokens + points.at(-1).tokens) / 2 ? "bottom left" : "bottom right")), cliponaxis: false, customdata: points.map(text), hovertemplate: "%{customdata}<extra></extra>",
      error_y: { type: "data", symmetric: false, array: points.map((one) => (one.high ?? one.score) - one.score), arrayminus: points.map((one) => one.score - (one.low ?? one.score)), color: faded(css("--mai"), 0.4), thickness: 1.2, width: 3 },
    },
  ], { xaxis: axis({ title: "output tokens for one document" }), yaxis: axis({ title: "score, %" }), margin: { l: 50, r: 34, t: 8, b: 42 } });
}

/** Draw all figures, one after another, so that the page answers in between. */
async function drawAll() {
  const points = figuresOf("points")[0]?.data ?? [];
  const all = [
    drawFlow,
    () => drawPoints("tokens", points, "tokens", "output tokens for one document (logarithmic)", "output tokens"),
    () => drawPoints("seconds", points, "wall_s", "wall seconds for one document (logarithmic)", "wall seconds"),
    drawDifferences, drawExits, drawHistogram, drawOccupancy, drawRules,
  ];
  for (const draw of all) {
    await draw();
    await pause();
  }
}
