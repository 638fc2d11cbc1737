// The graph: boxes in columns and lanes, coloured by stage.

const COLUMN = 90; // world units of a column, and of a lane
const LANE = 36;
const MARGIN = 20; // left of the first column
const BOX = { width: 72, height: 24 };
const CROWDED = 1500; // edges
const LEGIBLE = 0.95; // scale from which on boxes have text

const ops = data.ops;
const kernels = data.kernels;
const drawing = data.graph;
const opsOfBox = grouped(ops.box, drawing.x.length);
const opsOfKernel = grouped(ops.kernel, kernels.stage.length);
const stageOfBox = opsOfBox.map((members) => kernels.stage[ops.kernel[members[0]]]);
const boxAt = new Map(drawing.x.map((x, box) => [`${x},${drawing.y[box]}`, box]));
const opByName = new Map(ops.name.map((name, op) => [name, op]));
const selection = { op: null, box: null };
let graphView = null;

function grouped(groupOf, count) {
  const groups = Array.from({ length: count }, () => []);
  groupOf.forEach((group, member) => groups[group].push(member));
  return groups;
}

function boxEdges() {
  const seen = new Set();
  const edges = [];
  ops.edge_from.forEach((from, i) => {
    const pair = [ops.box[from], ops.box[ops.edge_to[i]]];
    const key = pair[0] * drawing.x.length + pair[1];
    if (pair[0] === pair[1] || seen.has(key)) return;
    seen.add(key);
    edges.push(pair);
  });
  return edges;
}

function placeIn(column, lane) {
  return [MARGIN + column * COLUMN, lane * LANE];
}

function corner(box) {
  return placeIn(drawing.x[box], drawing.y[box]);
}

// Forwards a curve from right to left side; to another row from below to above.
function addEdge(path, [from, to]) {
  const [x1, y1] = corner(from);
  const [x2, y2] = corner(to);
  const middle = BOX.height / 2;
  if (x2 > x1 && Math.abs(y2 - y1) <= 10 * LANE) {
    const bend = Math.min(COLUMN / 2, (x2 - x1 - BOX.width) / 2 + 6);
    path.moveTo(x1 + BOX.width, y1 + middle);
    path.bezierCurveTo(x1 + BOX.width + bend, y1 + middle, x2 - bend, y2 + middle, x2, y2 + middle);
  } else {
    const [out, into] = y2 > y1 ? [BOX.height, 0] : [0, BOX.height];
    const bend = y2 > y1 ? LANE : -LANE;
    path.moveTo(x1 + BOX.width / 2, y1 + out);
    path.bezierCurveTo(x1 + BOX.width / 2, y1 + out + bend, x2 + BOX.width / 2, y2 + into - bend, x2 + BOX.width / 2, y2 + into);
  }
}

function edgePaths(edges) {
  const paths = { within: new Path2D(), between: new Path2D() };
  for (const edge of edges) addEdge(stageOfBox[edge[0]] === stageOfBox[edge[1]] ? paths.within : paths.between, edge);
  return paths;
}

function boxPaths() {
  const paths = data.stages.map(() => new Path2D());
  stageOfBox.forEach((stage, box) => paths[stage].roundRect(...corner(box), BOX.width, BOX.height, 4));
  return paths;
}

function showGraph() {
  const edges = boxEdges();
  const shapes = { edges, ...edgePaths(edges), boxes: boxPaths() };
  const canvas = byId("graph");
  graphView = new View(canvas, false, (context, view) => paintGraph(context, view, shapes), {
    click: (_, place) => selectBox(boxUnder(place)),
    hover: (event, place) => hoverBox(event, place === null ? null : boxUnder(place)),
  });
  graphView.setWorld(drawing.width * COLUMN - (COLUMN - BOX.width) + 2 * MARGIN, drawing.height * LANE + 8);
  graphView.addButtons(byId("graph-buttons"));
  addNotes("graph-notes", data.notes.graph);
}

function boxUnder([x, y]) {
  const [column, lane] = [Math.floor((x - MARGIN) / COLUMN), Math.floor(y / LANE)];
  const [left, top] = placeIn(column, lane);
  const isOnBox = x - left <= BOX.width && y - top <= BOX.height;
  return isOnBox ? boxAt.get(`${column},${lane}`) ?? null : null;
}

function hoverBox(event, box) {
  byId("graph").style.cursor = box === null ? "grab" : "pointer";
  showTip(event, box === null ? null : boxTip(box));
}

function boxTip(box) {
  const members = opsOfBox[box];
  const more = members.length > 1 ? ` and ${members.length - 1} more` : "";
  return [ops.name[members[0]] + more, data.stages[stageOfBox[box]].name];
}

function selectBox(box) {
  if (box !== null) selectOp(opsOfBox[box][0], false);
}

function paintGraph(context, view, shapes) {
  const { scale } = view;
  context.scale(scale, scale);
  context.translate(-view.left, -view.top);
  paintBands(context, view);
  paintEdges(context, scale, shapes);
  shapes.boxes.forEach((path, stage) => {
    context.fillStyle = data.stages[stage].colour;
    context.fill(path);
  });
  if (selection.box !== null) paintSelection(context, scale, shapes);
  if (scale >= LEGIBLE) paintLabels(context, view);
}

function paintBands(context, view) {
  context.fillStyle = colour("--band");
  for (const [, x, y, width, height] of drawing.bands) {
    const [left, top] = placeIn(x, y);
    context.beginPath();
    context.roundRect(left - 8, top - 6, width * COLUMN - (COLUMN - BOX.width) + 16, height * LANE - (LANE - BOX.height) + 12, 8);
    context.fill();
  }
  paintNames(context, view);
}

// The name of each stage above where it begins, as large as on the page, where there is room for it.
function paintNames(context, view) {
  const size = Math.min(12 / view.scale, LANE * 0.75);
  if (size * view.scale < 6) return;
  context.font = `600 ${size}px system-ui, sans-serif`;
  context.fillStyle = colour("--quiet");
  context.textBaseline = "bottom";
  let before = null;
  for (const [stage, x, y, width] of drawing.bands) {
    const text = data.stages[stage].name;
    const room = (width + 1) * COLUMN - 4;
    const [left, top] = placeIn(x, y);
    if (stage !== before && context.measureText(text).width <= room) context.fillText(text, left - 6, top - 7);
    before = stage;
  }
}

function paintEdges(context, scale, shapes) {
  // Of many edges each is paler, so that boxes can be seen among them.
  context.globalAlpha = Math.max(Math.min(1, CROWDED / shapes.edges.length), 0.15);
  context.lineWidth = Math.min(1.2, 0.9 / scale);
  context.strokeStyle = colour("--edge");
  context.stroke(shapes.within);
  context.strokeStyle = colour("--edge-out");
  context.stroke(shapes.between);
  context.globalAlpha = 1;
}

function paintSelection(context, scale, shapes) {
  const path = new Path2D();
  for (const edge of shapes.edges) if (edge.includes(selection.box)) addEdge(path, edge);
  context.strokeStyle = colour("--accent");
  context.lineWidth = 2 / Math.min(scale, 1.4);
  context.stroke(path);
  context.strokeStyle = colour("--ink");
  context.lineWidth = 2.5 / Math.min(scale, 1.4);
  context.beginPath();
  const margin = 2 / Math.min(scale, 1.4);
  const [x, y] = corner(selection.box);
  context.roundRect(x - margin, y - margin, BOX.width + 2 * margin, BOX.height + 2 * margin, 5);
  context.stroke();
}

function paintLabels(context, view) {
  context.fillStyle = colour("--on-colour");
  context.font = "10px system-ui, sans-serif";
  context.textBaseline = "middle";
  const [right, bottom] = view.toWorld(view.width, view.height);
  drawing.x.forEach((_, box) => {
    const [x, y] = corner(box);
    if (x > right || y > bottom || x + BOX.width < view.left || y + BOX.height < view.top) return;
    context.save();
    context.beginPath();
    context.rect(x + 3, y, BOX.width - 6, BOX.height);
    context.clip();
    context.fillText(boxLabel(box), x + 5, y + BOX.height / 2 + 0.5);
    context.restore();
  });
}

function boxLabel(box) {
  const members = opsOfBox[box];
  const type = ops.types[ops.type[members[0]]];
  return members.length > 1 ? `${type} +${members.length - 1}` : type;
}
