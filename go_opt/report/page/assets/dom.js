// Elements are made from text nodes only: no name of a model is ever read as HTML.

const data = JSON.parse(document.getElementById("data").textContent);

function byId(id) {
  return document.getElementById(id);
}

function make(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name.startsWith("--")) element.style.setProperty(name, value);
    else element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child !== null));
  return element;
}

function makeSvg(tag, attributes, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

function makeBar(share, className = "") {
  const fill = make("i");
  fill.style.width = `${Math.min(Math.max(share, 0), 1) * 100}%`;
  return make("div", { class: `track ${className}` }, fill);
}

function opLink(op, text) {
  if (op === null || op === undefined) return make("span", { class: "name" }, text);
  return make("button", { class: "link name", type: "button", onclick: () => selectOp(op, true) }, text);
}

// Sentences have names between backticks; those of ops lead to the graph.
function withNames(line) {
  return line.split("`").map((text, i) => (i % 2 ? opLink(opByName.get(text), text) : text));
}

function addNotes(id, notes) {
  for (const note of notes) byId(id).append(make("p", { class: "note" }, note));
}

function showTip(event, lines) {
  const tip = byId("tip");
  tip.hidden = lines === null;
  if (lines === null) return;
  tip.replaceChildren(...lines.map((line) => make("div", {}, line)));
  const { width, height } = tip.getBoundingClientRect();
  tip.style.left = `${Math.max(4, Math.min(event.clientX + 14, innerWidth - width - 4))}px`;
  tip.style.top = `${Math.max(4, Math.min(event.clientY + 14, innerHeight - height - 4))}px`;
}

// Canvases ask for the colours of the page, which differ between light and dark.
function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}
