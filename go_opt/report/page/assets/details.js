// What is said of the op that is selected.

const MOST_LISTED = 12;

const readsOf = grouped(ops.edge_to, ops.name.length).map((edges) => edges.map((edge) => ops.edge_from[edge]));
const readersOf = grouped(ops.edge_from, ops.name.length).map((edges) => edges.map((edge) => ops.edge_to[edge]));

function selectOp(op, isCentred) {
  selection.op = op;
  selection.box = ops.box[op];
  if (isCentred) {
    const [x, y] = corner(selection.box);
    graphView.show(x + BOX.width / 2, y + BOX.height / 2, 1.1);
    byId("graph").scrollIntoView({ block: "nearest" });
  }
  graphView.redraw();
  showDetails(op);
}

function showNothingSelected() {
  byId("details").replaceChildren(
    make("p", { class: "quiet" }, "Click a box, or search an op, to see what it is, what it costs and why it is where it is."));
}

function showDetails(op) {
  const kernel = ops.kernel[op];
  const stage = data.stages[kernels.stage[kernel]];
  byId("details").replaceChildren(
    make("h3", { class: "name", id: "selected" }, ops.name[op]),
    make("div", {}, make("span", { class: "swatch", "--stage": stage.colour }),
      stage.chips > 1 ? `${stage.name}, each for every ${ordinal(stage.chips)} inference` : stage.name),
    opFacts(op),
    whySection(op, kernel, stage),
    kernelSection(op, kernel, stage),
    ...opList("Reads from", readsOf[op]),
    ...opList("Read by", readersOf[op]),
    ...boxSection(op));
}

function ordinal(number) {
  const ends = { 1: "st", 2: "nd", 3: "rd" };
  const isTeen = Math.floor((number % 100) / 10) === 1;
  return `${number}${(!isTeen && ends[number % 10]) || "th"}`;
}

function opFacts(op) {
  return facts([
    ["type", `${ops.types[ops.type[op]]} (${ops.classes[ops.class[op]].replace("_", " ")}, ${ops.dtypes[ops.dtype[op]]})`],
    ["work", formatFlops(ops.flops[op])],
    ["reads", formatBytes(ops.read_bytes[op])],
    ["weights", formatBytes(ops.weight_bytes[op])],
    ["writes", formatBytes(ops.written_bytes[op])],
  ]);
}

function facts(rows) {
  const list = make("dl");
  for (const [label, value] of rows) list.append(make("dt", {}, label), make("dd", { class: "number" }, value));
  return list;
}

function kernelSection(op, kernel, stage) {
  const seconds = kernels.seconds[kernel];
  const [whole, turns] = data.objective === "latency" ? ["makespan", 1] : ["interval", stage.chips];
  const share = data.whole_s ? seconds / turns / data.whole_s : 0;
  const mates = opsOfKernel[kernel].filter((other) => other !== op);
  return make("section", {},
    make("h3", {}, "Kernel"),
    make("div", {}, `${formatDuration(seconds)}, ${(share * 100).toPrecision(2)}% of the ${whole}; ${kernels.limits[kernels.limit[kernel]]} binds`),
    facts([
      ["compute", formatDuration(kernels.compute_s[kernel])],
      ["SRAM traffic", `${kernels.sram_s[kernel] ? `${formatDuration(kernels.sram_s[kernel])}, ` : ""}${formatBytes(kernels.moved_bytes[kernel])}`],
      ["overhead", formatDuration(kernels.overhead_s[kernel])],
      ...(kernels.measured_s[kernel] ? [["measured", formatDuration(kernels.measured_s[kernel])]] : []),
      ...slackFacts(kernel),
    ]),
    ...(mates.length ? [make("div", { class: "quiet" }, `fused with ${counted(mates.length, "op")}`), opItems(mates)] : []));
}

function slackFacts(kernel) {
  if (!kernels.start_s) return [];
  const slack = kernels.slack_s[kernel];
  return [
    ["begins after", formatDuration(kernels.start_s[kernel])],
    ["may wait", slack > 0 ? formatDuration(slack) : "not at all: it is on the critical path"],
  ];
}

function opList(title, members) {
  const others = [...new Set(members)];
  return others.length ? [make("section", {}, make("h3", {}, title), opItems(others))] : [];
}

function opItems(members) {
  const list = make("ul");
  for (const op of members.slice(0, MOST_LISTED)) {
    const stage = data.stages[kernels.stage[ops.kernel[op]]];
    list.append(make("li", {}, make("span", { class: "swatch", title: stage.name, "--stage": stage.colour }), opLink(op, ops.name[op])));
  }
  if (members.length > MOST_LISTED) list.append(make("li", { class: "quiet" }, `and ${members.length - MOST_LISTED} more`));
  return list;
}

function whySection(op, kernel, stage) {
  const lines = [`Placed by: ${ops.origins[ops.origin[op]]}.`, ...tieLines(kernel)];
  const moves = data.moves === null ? null : data.moves[kernel];
  const list = make("ul");
  for (const line of lines) list.append(make("li", {}, line));
  for (const move of moves ?? []) list.append(make("li", {}, ...withNames(moveText(move))));
  if (moves && moves.length === 0) list.append(make("li", {}, "There is no other stage."));
  return make("section", {}, make("h3", {}, `Why on ${stage.name}`), list);
}

// The stages that a kernel reads from and is read on.
function tieLines(kernel) {
  const stagesOf = (edges) => {
    const others = opsOfKernel[kernel].flatMap((op) => edges[op]).filter((other) => ops.kernel[other] !== kernel);
    const places = new Set(others.map((other) => kernels.stage[ops.kernel[other]]));
    return [...places].sort((a, b) => a - b).map((stage) => data.stages[stage].name);
  };
  const [from, to] = [stagesOf(readsOf), stagesOf(readersOf)];
  const lines = [];
  if (from.length) lines.push(`The kernel reads what ${listed(from)} ${from.length > 1 || from[0].startsWith("chips") ? "make" : "makes"}.`);
  if (to.length) lines.push(`What it makes is read on ${listed(to)}.`);
  return lines;
}

function listed(names) {
  const shown = names.slice(0, 3).join(", ");
  return names.length > 3 ? `${shown} and ${names.length - 3} more` : shown;
}

function moveText(move) {
  const along = move.along ? `, with ${counted(move.along, "op")} that must follow` : "";
  const why = move.because ? ` (${move.because})` : "";
  if (move.change === "forbidden") return `On ${move.to} instead${along}: not allowed${why}.`;
  const change = move.change === "none" ? "the interval stays" : `the interval is ${move.interval}, ${move.change}`;
  return `On ${move.to} instead${along}: ${change}${why}.`;
}

function boxSection(op) {
  const members = opsOfBox[ops.box[op]];
  if (drawing.level !== "kernels" || members.length === 1) return [];
  return [make("section", {}, make("h3", {}, `In this box: ${counted(members.length, "op")}`), opItems(members))];
}
