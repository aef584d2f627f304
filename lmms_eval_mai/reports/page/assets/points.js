// Score over cost: one point for each method, with its interval, its name and the line of the best methods.

/** Return at least three numbers for the marks of a logarithmic axis. */
function logTicks([low, high]) {
  for (const steps of [[1, 2, 5], [1, 1.5, 2, 3, 5, 7], [1, 1.2, 1.4, 1.6, 1.8, 2, 2.5, 3, 3.5, 4, 5, 6, 7, 8, 9]]) {
    const found = [];
    for (let power = Math.floor(low); power <= high; power++) found.push(...steps.map((step) => Number(`${step}e${power}`)));
    const shown = found.filter((one) => Math.log10(one) >= low && Math.log10(one) <= high);
    if (shown.length > 2) return shown;
  }
  return [0.25, 0.5, 0.75].map((part) => Number((10 ** (low + part * (high - low))).toPrecision(3)));
}

/** Return the points that no other point beats: nothing is both cheaper and better. */
function frontier(points) {
  const best = [];
  for (const point of [...points].sort((a, b) => a.cost - b.cost || b.score - a.score)) {
    if (!best.length || point.score > best.at(-1).score) best.push(point);
  }
  return best;
}

/** Return an offset in pixels for the name of each point, so that names cover neither points nor each other. null: there
 * is no free place. MAI and Full RT choose first. */
function placeNames(points, width, height) {
  const boxes = points.map(({ x, y }) => [x - 7, y - 7, x + 7, y + 7]);
  const offsets = new Map();
  const first = (point) => (["mai", "full_rt"].includes(point.role) ? 0 : 1);
  // From top to bottom, so that lines do not cross.
  for (const point of [...points].sort((a, b) => first(a) - first(b) || a.y - b.y)) {
    const { x, y, name } = point;
    const half = 3.3 * name.length + 2;
    const candidates = [];
    for (const far of [0, 15, 30, 45, 60, 75]) {
      candidates.push([half + 11, -far], [-half - 11, -far], [half + 11, far], [-half - 11, far], [0, -16 - far], [0, 16 + far]);
    }
    const fits = ([dx, dy]) => {
      const box = [x + dx - half, y + dy - 8, x + dx + half, y + dy + 8];
      if (box[0] < 0 || box[2] > width || box[1] < 0 || box[3] > height) return false;
      return boxes.every((one) => box[2] < one[0] || box[0] > one[2] || box[3] < one[1] || box[1] > one[3]);
    };
    const place = candidates.find(fits);
    if (!place) continue;
    const [dx, dy] = place;
    boxes.push([x + dx - half, y + dy - 8, x + dx + half, y + dy + 8]);
    offsets.set(point, [dx, dy]);
  }
  return points.map((point) => offsets.get(point) ?? null);
}

/** Return the range of an axis on a logarithmic scale, with room at both ends. */
function logRange(values) {
  const [low, high] = [Math.min(...values), Math.max(...values)].map(Math.log10);
  const room = Math.max(0.12, 0.12 * (high - low));
  return [low - room, high + room];
}

async function drawPoints(key, found, field, title, unit) {
  const points = found
    .filter((one) => one[field] > 0)
    .map((one) => ({ ...one, cost: one[field], role: FIGURES.roles[one.method] ?? "other", name: FIGURES.short[one.method] ?? one.method }));
  if (!points.length) return drawNothing(key, field === "wall_s" ? "No run has a wall time of its own." : "No run has token counts.");
  const costs = points.map((one) => one.cost);
  const lows = points.map((one) => one.low ?? one.score), highs = points.map((one) => one.high ?? one.score);
  const room = 0.06 * (Math.max(...highs) - Math.min(...lows)) || 1;
  const xRange = logRange(costs), yRange = [Math.min(...lows) - room, Math.max(...highs) + room];
  const width = byId(`chart-${key}`).clientWidth - 84, chart = width < 420 ? 450 : 330, height = chart - 84;
  const pixels = points.map((one) => ({
    name: one.name,
    role: one.role,
    x: (width * (Math.log10(one.cost) - xRange[0])) / (xRange[1] - xRange[0]),
    y: (height * (yRange[1] - one.score)) / (yRange[1] - yRange[0]),
  }));
  const offsets = placeNames(pixels, width, height);
  const best = frontier(points);
  const traces = [{
    x: best.map((one) => one.cost), y: best.map((one) => one.score), mode: "lines", hoverinfo: "skip", showlegend: false,
    line: { color: css("--strong"), width: 1.5, dash: "dot", shape: "hv" },
  }];
  for (const role of Object.keys(ROLE_NAMES)) {
    const those = points.filter((one) => one.role === role);
    if (those.length) traces.push(tracePoints(those, role, unit));
  }
  const named = points.map((one, i) => [one, offsets[i]]).filter(([, offset]) => offset);
  const annotations = named.map(([one, [dx, dy]]) => note(label(one.name), {
    x: Math.log10(one.cost), y: one.score, ax: dx, ay: dy, showarrow: true, arrowhead: 0, arrowwidth: 0.8, borderpad: 1,
    arrowcolor: Math.abs(dy) > 20 ? css("--quiet") : "rgba(0,0,0,0)", standoff: 6, font: { size: 11.5, color: css("--ink") },
  }));
  const ticks = logTicks(xRange);
  await drawChart(key, traces, {
    xaxis: axis({ title, type: "log", range: xRange, tickvals: ticks, ticktext: ticks.map(count3) }),
    yaxis: axis({ title: "score, %", range: yRange }),
    annotations, showlegend: true, margin: { l: 50, r: 14, t: 34, b: 42 },
  }, chart);
}

const count3 = (number) => (number >= 1 ? count(number) : String(number));

function tracePoints(points, role, unit) {
  const side = (name) => points.map((one) => (one[name] === null ? 0 : Math.abs(one[name] - one.score)));
  return {
    x: points.map((one) => one.cost), y: points.map((one) => one.score), mode: "markers", name: ROLE_NAMES[role],
    marker: { color: roleColour(role), symbol: SYMBOLS[role], size: 11, line: { color: css("--card"), width: 1 } },
    error_y: { type: "data", symmetric: false, array: side("high"), arrayminus: side("low"), color: faded(roleColour(role), 0.55), thickness: 1.5, width: 3 },
    hovertemplate: "%{text}<extra></extra>",
    text: points.map((one) => {
      const interval = one.low === null ? "" : ` (${one.low.toFixed(1)} to ${one.high.toFixed(1)})`;
      return `<b>${label(one.method)}</b><br>score ${one.score.toFixed(1)}${interval}<br>${one.cost.toPrecision(3)} ${unit} per document<br>n = ${count(one.n)}`;
    }),
  };
}
