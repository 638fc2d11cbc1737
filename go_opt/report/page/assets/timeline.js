// Kernels and transfers of each chip over time.

const GUTTER = 78; // left of the bars, for names
const AXIS = 24; // above them, for times

const over = data.timeline;
const marked = { inference: null };
let rowHeight = 16;

function showTimeline() {
  const what = over.fidelity === "simulated" ? "simulated" : "by the cost model";
  const longest = Math.max(26 - over.rows.length / 2, 13);
  rowHeight = Math.round(Math.min(longest, 24));
  byId("timeline-text").textContent =
    `The first ${counted(over.inferences, "inference")}, ${what}, from rest. Bars are kernels in the colour of their stage; ` +
    "every other inference of a chip is paler; the line below a bar is what the chip sends. Point at a bar to follow its inference over the chips.";
  addNotes("timeline-notes", data.notes.timeline);
  const canvas = byId("timeline");
  canvas.style.height = `${AXIS + over.rows.length * rowHeight + 6}px`;
  const view = new View(canvas, true, paintTimeline, {
    click: () => {},
    hover: (event, place) => hoverTimeline(event, place, view),
  });
  view.setWorld(Math.max(over.end_ns, 1), 1);
  view.addButtons(byId("timeline-buttons"));
}

// The view measures from the left edge of the canvas; bars begin behind the names.
function timeAt(view, x) {
  return view.left + ((x - GUTTER) / (view.width - GUTTER)) * (view.width / view.scale);
}

function placeOf(view, time) {
  return GUTTER + (time - view.left) * view.scale * ((view.width - GUTTER) / view.width);
}

function paintTimeline(context, view) {
  context.save();
  paintAxis(context, view);
  context.beginPath();
  context.rect(GUTTER, 0, view.width - GUTTER, view.height);
  context.clip();
  paintWaits(context, view);
  paintKernels(context, view);
  paintTransfers(context, view);
  context.restore();
  paintRowNames(context);
}

function niceStep(span, count) {
  const rough = span / count;
  const power = 10 ** Math.floor(Math.log10(rough));
  return [1, 2, 5, 10].map((factor) => factor * power).find((step) => step >= rough);
}

function paintAxis(context, view) {
  const seen = view.width / view.scale;
  const step = niceStep(seen, Math.max(3, Math.floor((view.width - GUTTER) / 120)));
  context.font = "11px system-ui, sans-serif";
  context.textBaseline = "middle";
  for (let time = Math.max(0, Math.ceil(view.left / step) * step); time <= view.left + seen; time += step) {
    const x = placeOf(view, time);
    if (x < GUTTER) continue;
    context.fillStyle = colour("--line");
    context.fillRect(x, AXIS - 4, 1, view.height);
    context.fillStyle = colour("--quiet");
    const text = time ? formatDuration(time * NANOSECOND) : "0";
    if (x + 4 + context.measureText(text).width <= view.width) context.fillText(text, x + 4, AXIS / 2);
  }
}

function paintRowNames(context) {
  const every = Math.ceil(11 / rowHeight);
  context.font = "11px system-ui, sans-serif";
  context.textBaseline = "middle";
  over.rows.forEach((row, i) => {
    const y = AXIS + i * rowHeight;
    if (row.stage !== null) {
      context.fillStyle = data.stages[row.stage].colour;
      context.fillRect(2, y + 1, 4, rowHeight - 2);
    }
    context.fillStyle = colour("--quiet");
    if (i % every === 0 || row.stage === null) context.fillText(row.name, 12, y + rowHeight / 2);
  });
}

function eachSeen(view, spans, paint) {
  const end = view.left + view.width / view.scale;
  for (let i = 0; i < spans.row.length; i += 1) {
    if (spans.end_ns[i] < view.left || spans.begin_ns[i] > end) continue;
    const x = placeOf(view, spans.begin_ns[i]);
    paint(i, x, AXIS + spans.row[i] * rowHeight, Math.max(placeOf(view, spans.end_ns[i]) - x, 0.6));
  }
}

function fade(context, inference) {
  context.globalAlpha = marked.inference === null || marked.inference === inference ? 1 : 0.18;
}

function paintKernels(context, view) {
  const height = rowHeight - Math.max(4, Math.round(rowHeight * 0.3));
  eachSeen(view, over.kernels, (i, x, y, width) => {
    const { inference } = over.kernels;
    fade(context, inference[i]);
    // Every other inference of a chip is paler.
    const isPale = Math.floor(inference[i] / data.stages[kernels.stage[over.kernels.kernel[i]]].chips) % 2;
    if (isPale) context.globalAlpha *= 0.66;
    context.fillStyle = data.stages[kernels.stage[over.kernels.kernel[i]]].colour;
    // A gap of a pixel tells bars apart where there is room for it.
    context.fillRect(x, y + 1, width > 3 ? width - 1 : width, height);
  });
  context.globalAlpha = 1;
}

function paintWaits(context, view) {
  context.fillStyle = colour("--strong");
  eachSeen(view, over.waits, (i, x, y, width) => {
    fade(context, over.waits.inference[i]);
    context.fillRect(x, y + Math.round(rowHeight / 3), width, 2);
  });
  context.globalAlpha = 1;
}

function paintTransfers(context, view) {
  context.fillStyle = colour("--bar");
  eachSeen(view, over.transfers, (i, x, y, width) => {
    fade(context, over.transfers.inference[i]);
    const isHost = over.rows[over.transfers.row[i]].stage === null;
    if (isHost) context.fillRect(x, y + 2, width, rowHeight - 4);
    else context.fillRect(x, y + rowHeight - 4, width, 2);
  });
  context.globalAlpha = 1;
}

function spanUnder(spans, row, time, margin) {
  return spans.row.findIndex((at, i) => at === row && spans.begin_ns[i] - margin <= time && time <= spans.end_ns[i] + margin);
}

function hoverTimeline(event, place, view) {
  const hit = place === null ? null : hitUnder(event, view);
  const inference = hit === null ? null : hit.inference;
  showTip(event, hit === null ? null : hit.lines);
  if (inference !== marked.inference) {
    marked.inference = inference;
    view.redraw();
  }
}

function hitUnder(event, view) {
  const row = Math.floor((event.offsetY - AXIS) / rowHeight);
  if (event.offsetX < GUTTER || row < 0 || row >= over.rows.length) return null;
  const time = timeAt(view, event.offsetX);
  const kernel = spanUnder(over.kernels, row, time, 0);
  if (kernel >= 0) return hitOf(over.kernels, kernel, kernelText(kernel));
  const transfer = spanUnder(over.transfers, row, time, 1 / view.scale);
  return transfer >= 0 ? hitOf(over.transfers, transfer, transferText(transfer)) : null;
}

function hitOf(spans, i, text) {
  const [begin, end] = [spans.begin_ns[i] * NANOSECOND, spans.end_ns[i] * NANOSECOND];
  const when = `inference ${spans.inference[i]}, ${formatDuration(end - begin)} from ${begin ? formatDuration(begin) : "0"}`;
  return { inference: spans.inference[i], lines: [text, when] };
}

function kernelText(i) {
  const members = opsOfKernel[over.kernels.kernel[i]];
  const more = members.length > 1 ? ` and ${members.length - 1} fused` : "";
  const count = over.kernels.count[i];
  return count > 1 ? `${counted(count, "kernel")} from ${ops.name[members[0]]} on` : ops.name[members[0]] + more;
}

function transferText(i) {
  const { transfers } = over;
  return `${transfers.links[transfers.link[i]]}: ${formatBytes(transfers.bytes[i])} of ${transfers.tensors[transfers.tensor[i]]}`;
}
