// The memory of the first chip of each stage over time, below its limit.

function showMemory() {
  byId("memory-text").textContent =
    "Of the first chip of each stage while the inferences above run. The bar is all its memory: weights, then the rest at its peak. " +
    "The chart is what comes beside the weights, activations and the buffers of transfers, over time; the dashed line is the limit, where it is near.";
  data.memory.forEach((memory, i) => byId("memory").append(memoryFigure(memory, data.stages[i])));
}

function memoryFigure(memory, stage) {
  const { most_bytes: most, limit_bytes: limit, weight_bytes: weights } = memory;
  return make("figure", {},
    make("figcaption", {},
      make("span", {}, make("span", { class: "swatch", "--stage": stage.colour }), stage.name),
      make("span", { class: "number quiet" }, `${formatBytes(most)} of ${formatBytes(limit)} · ${formatShare(most / limit)}`)),
    meter("", "", [weights / limit, (most - weights) / limit], { tone: stage.colour }),
    memoryChart(memory, stage.colour),
    make("div", { class: "under quiet" }, `${formatBytes(weights)} of ${memory.weights ?? "weights"} + ${formatBytes(most - weights)}`));
}

const CHART = { width: 240, height: 60 };
const LEAST_SHARE = 0.1; // of the room, at the peak: below it the limit is far outside the chart

function memoryChart(memory, tone) {
  const end = Math.max(data.timeline.end_ns, 1);
  const room = Math.max(memory.limit_bytes - memory.weight_bytes, 1);
  const peak = Math.max(memory.most_bytes - memory.weight_bytes, 1);
  const isLimitSeen = peak >= LEAST_SHARE * room;
  const top = isLimitSeen ? room : peak * 1.25;
  let steps = `M0 ${CHART.height}`;
  memory.begin_ns.forEach((begin, i) => {
    const x = (Math.min(begin / end, 1) * CHART.width).toFixed(1);
    const share = Math.min((memory.bytes[i] - memory.weight_bytes) / top, 1);
    const y = (CHART.height * (1 - share)).toFixed(1);
    steps += i === 0 ? `V${y}` : `H${x}V${y}`;
  });
  steps += `H${CHART.width}V${CHART.height}Z`;
  return makeSvg("svg", { viewBox: `0 0 ${CHART.width} ${CHART.height}`, preserveAspectRatio: "none", role: "img", "aria-label": "Bytes held beside the weights over time" },
    makeSvg("path", { d: steps, fill: tone }),
    ...(isLimitSeen ? [limitLine()] : []));
}

function limitLine() {
  return makeSvg("line", { x1: 0, x2: CHART.width, y1: 1, y2: 1, stroke: "currentColor", "stroke-width": 1.5, "stroke-dasharray": "5 4", "stroke-opacity": 0.55 });
}
