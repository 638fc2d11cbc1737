// A training step: its ranks, where its time goes, its passes over time.

function showRanks() {
  byId("pipeline-text").textContent =
    "A rank of the pipeline, with the seconds that its layers take for a micro-batch, forwards and backwards, as a share of the slowest rank.";
  for (const rank of data.stages) {
    const memory = [rank.state_bytes / rank.limit_bytes, rank.other_bytes / rank.limit_bytes];
    byId("pipeline").append(make("li", { class: "forward", "--stage": rank.colour },
      make("div", { class: "top" },
        make("span", {}, rank.name),
        rank.is_slowest ? make("span", { class: "mark" }, "slowest") : null,
        make("span", { class: "times" }, counted(rank.devices, "device"))),
      make("div", { class: "small" }, rank.layers),
      meter("a micro-batch", `${formatDuration(rank.seconds)} · ${formatShare(rank.load)}`, [rank.load], { tone: rank.colour }),
      meter("memory", `${formatBytes(rank.state_bytes + rank.other_bytes)} of ${formatBytes(rank.limit_bytes)}`, memory)));
  }
}

function showParts() {
  const parts = make("div", { class: "part" }, make("h3", {}, "Where the time goes"));
  for (const part of data.parts) {
    parts.append(row(make("span", {}, part.name), `${formatDuration(part.seconds)} · ${formatShare(part.share)}`, part.share, "", "binds"));
  }
  const helps = make("div", { class: "part" }, make("h3", {}, "What would help, with this plan as it is"));
  for (const help of data.helps) {
    const gain = `${formatDuration(help.seconds)} · ${((help.share - 1) * 100).toFixed(1)}%`;
    helps.append(row(make("span", {}, help.change), gain, help.share, "", "helps"));
  }
  helps.append(make("p", { class: "quiet" }, "Bars are the step then, as a share of today's."));
  byId("limits").append(make("div", {}, parts), make("div", {}, helps));
}

function showPasses() {
  rowHeight = Math.round(Math.min(Math.max(26 - over.rows.length / 2, 13), 24));
  byId("timeline-text").textContent =
    "The simulated step. Bars are passes of micro-batches in the colour of their rank: forward ones pale, backward ones full. " +
    "Grey bars behind them are sums of gradients, and the update of the weights. Point at a bar to follow its micro-batch.";
  addNotes("timeline-notes", data.notes.timeline);
  const canvas = byId("timeline");
  canvas.style.height = `${AXIS + over.rows.length * rowHeight + 6}px`;
  const view = new View(canvas, true, paintPasses, {
    click: () => {},
    hover: (event, place) => hoverPasses(event, place, view),
  });
  view.setWorld(Math.max(over.end_ns, 1), 1);
  view.addButtons(byId("timeline-buttons"));
}

function paintPasses(context, view) {
  context.save();
  paintAxis(context, view);
  context.beginPath();
  context.rect(GUTTER, 0, view.width - GUTTER, view.height);
  context.clip();
  const height = rowHeight - 4;
  eachSeen(view, over.passes, (i, x, y, width) => {
    fade(context, over.passes.inference[i]);
    if (!over.passes.back[i]) context.globalAlpha *= 0.45;
    context.fillStyle = data.stages[over.rows[over.passes.row[i]].stage].colour;
    context.fillRect(x, y + 1, width > 3 ? width - 1 : width, height);
  });
  context.globalAlpha = 1;
  context.fillStyle = colour("--bar");
  eachSeen(view, over.ends, (i, x, y, width) => {
    if (over.ends.end_ns[i] > over.ends.begin_ns[i]) context.fillRect(x, y + 3, width, height - 4);
  });
  context.restore();
  paintRowNames(context);
}

function hoverPasses(event, place, view) {
  const at = Math.floor((event.offsetY - AXIS) / rowHeight);
  const isRow = place !== null && event.offsetX >= GUTTER && at >= 0 && at < over.rows.length;
  const i = isRow ? spanUnder(over.passes, at, timeAt(view, event.offsetX), 0) : -1;
  if (i < 0) showTip(event, null);
  else {
    const [begin, end] = [over.passes.begin_ns[i] * NANOSECOND, over.passes.end_ns[i] * NANOSECOND];
    const what = over.passes.back[i] ? "backward" : "forward";
    showTip(event, [
      `${what} pass of micro-batch ${over.passes.inference[i]} in stage ${over.passes.stage[i]}`,
      `${formatDuration(end - begin)} from ${begin ? formatDuration(begin) : "0"}`,
    ]);
  }
  const inference = i < 0 ? null : over.passes.inference[i];
  if (inference !== marked.inference) {
    marked.inference = inference;
    view.redraw();
  }
}

function showHeld() {
  byId("memory-text").textContent =
    "Of a device of each rank. The bar is all its memory: weights, gradients and moments, then the rest at its peak. " +
    "The chart is what comes beside them, activations that wait and what is at work, over time; the dashed line is the limit, where it is near.";
  data.memory.forEach((memory, i) => byId("memory").append(memoryFigure(memory, data.stages[i])));
}

showHead();
showRanks();
showParts();
showPasses();
showHeld();
