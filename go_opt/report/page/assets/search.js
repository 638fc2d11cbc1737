// Search of ops by name: a list below the field, for pointer and keyboard.

const MOST_FOUND = 30;

const names = ops.name.map((name) => name.toLowerCase());
const found = { ops: [], at: -1 };

function findOps(text) {
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  if (!words.length) return [];
  const matches = [];
  for (let op = 0; op < names.length && matches.length < MOST_FOUND; op += 1) {
    if (words.every((word) => names[op].includes(word))) matches.push(op);
  }
  return matches;
}

function showSearch() {
  const field = byId("search");
  field.addEventListener("input", () => showFound(findOps(field.value)));
  field.addEventListener("keydown", onSearchKey);
  field.addEventListener("blur", () => setTimeout(closeFound, 150));
  document.addEventListener("keydown", (event) => {
    const isTyping = event.target instanceof HTMLInputElement;
    if (event.key === "/" && !isTyping && !event.ctrlKey && !event.metaKey) {
      event.preventDefault();
      field.focus();
    }
  });
}

function showFound(matches) {
  found.ops = matches;
  found.at = matches.length ? 0 : -1;
  const list = byId("found");
  const isEmpty = byId("search").value.trim() === "";
  const none = make("li", { role: "option", "aria-disabled": "true" }, "No op has this name.");
  list.replaceChildren(...(matches.length || isEmpty ? matches.map(foundItem) : [none]));
  list.hidden = isEmpty;
  byId("search").setAttribute("aria-expanded", String(!isEmpty));
  markFound();
}

function foundItem(op, place) {
  const stage = data.stages[kernels.stage[ops.kernel[op]]];
  return make("li", { role: "option", id: `found-${place}`, onpointerdown: () => choose(op) },
    make("div", { class: "name" }, ops.name[op]),
    make("div", { class: "kind" }, make("span", { class: "swatch", "--stage": stage.colour }), `${ops.types[ops.type[op]]}, ${stage.name}`));
}

function markFound() {
  [...byId("found").children].forEach((item, place) => item.setAttribute("aria-selected", String(place === found.at)));
  const marked = byId(`found-${found.at}`);
  byId("search").setAttribute("aria-activedescendant", marked ? marked.id : "");
  if (marked) marked.scrollIntoView({ block: "nearest" });
}

function onSearchKey(event) {
  const steps = { ArrowDown: 1, ArrowUp: -1 };
  if (event.key in steps && found.ops.length) {
    found.at = (found.at + steps[event.key] + found.ops.length) % found.ops.length;
    markFound();
    event.preventDefault();
  } else if (event.key === "Enter" && found.at >= 0) {
    choose(found.ops[found.at]);
  } else if (event.key === "Escape") {
    closeFound();
  }
}

function choose(op) {
  closeFound();
  selectOp(op, true);
}

function closeFound() {
  byId("found").hidden = true;
  byId("search").setAttribute("aria-expanded", "false");
}
