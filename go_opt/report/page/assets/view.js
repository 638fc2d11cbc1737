// A canvas that is moved and zoomed: by pointer, wheel, keys and buttons.

const MOST_ZOOM = 60;

class View {
  // `paint(context, view)` draws; `hooks` may have `click` and `hover`, which get the event's place.
  constructor(canvas, isFlat, paint, hooks) {
    Object.assign(this, { canvas, isFlat, paint, hooks, left: 0, top: 0, scale: 1, least: 1 });
    this.pointers = new Map();
    this.isWanted = false;
    new ResizeObserver(() => this.resize()).observe(canvas);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.redraw());
    this.listen();
  }

  // What `fit` shows: a place and a size of the drawing.
  setWorld(width, height) {
    this.world = { width, height };
    this.resize();
    this.fit();
  }

  resize() {
    const { clientWidth, clientHeight } = this.canvas;
    const ratio = devicePixelRatio || 1;
    const before = { width: this.width, isWhole: this.scale === this.least };
    this.width = clientWidth;
    this.height = clientHeight;
    this.canvas.width = Math.round(clientWidth * ratio);
    this.canvas.height = Math.round(clientHeight * ratio);
    if (this.world && before.width !== clientWidth && before.isWhole) this.fit();
    else this.redraw();
  }

  fit() {
    const { width, height } = this.world;
    this.least = this.isFlat ? this.width / width : Math.min(this.width / width, this.height / height);
    this.scale = this.least;
    this.left = this.isFlat ? 0 : (width - this.width / this.scale) / 2;
    this.top = this.isFlat ? 0 : (height - this.height / this.scale) / 2;
    this.redraw();
  }

  redraw() {
    if (this.isWanted) return;
    this.isWanted = true;
    requestAnimationFrame(() => {
      this.isWanted = false;
      if (!this.world || !this.width) return;
      const context = this.canvas.getContext("2d");
      const ratio = devicePixelRatio || 1;
      context.setTransform(ratio, 0, 0, ratio, 0, 0);
      context.clearRect(0, 0, this.width, this.height);
      this.paint(context, this);
    });
  }

  toWorld(x, y) {
    return [this.left + x / this.scale, this.isFlat ? y : this.top + y / this.scale];
  }

  zoom(factor, x = this.width / 2, y = this.height / 2) {
    const [worldX, worldY] = this.toWorld(x, y);
    this.scale = Math.min(Math.max(this.scale * factor, this.least), this.least * MOST_ZOOM);
    this.left = worldX - x / this.scale;
    if (!this.isFlat) this.top = worldY - y / this.scale;
    this.keepInside();
  }

  move(x, y) {
    this.left += x / this.scale;
    if (!this.isFlat) this.top += y / this.scale;
    this.keepInside();
  }

  // Goes to a place of the drawing, near enough to read it.
  show(x, y, scale) {
    this.scale = Math.max(this.scale, scale);
    this.left = x - this.width / 2 / this.scale;
    this.top = y - this.height / 2 / this.scale;
    this.keepInside();
  }

  keepInside() {
    const { width, height } = this.world;
    this.left = inside(this.left, width, this.width / this.scale);
    if (!this.isFlat) this.top = inside(this.top, height, this.height / this.scale);
    this.redraw();
  }

  listen() {
    const { canvas } = this;
    canvas.addEventListener("wheel", (event) => this.onWheel(event), { passive: false });
    canvas.addEventListener("pointerdown", (event) => this.onDown(event));
    canvas.addEventListener("pointermove", (event) => this.onMove(event));
    canvas.addEventListener("pointerup", (event) => this.onUp(event));
    canvas.addEventListener("pointercancel", (event) => this.pointers.delete(event.pointerId));
    canvas.addEventListener("pointerleave", (event) => this.hooks.hover(event, null));
    canvas.addEventListener("keydown", (event) => this.onKey(event));
  }

  onWheel(event) {
    // Without Ctrl the wheel scrolls the page, unless it is asked to move sideways.
    if (event.ctrlKey || event.metaKey) this.zoom(Math.exp(-event.deltaY * 0.004), event.offsetX, event.offsetY);
    else if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) this.move(event.deltaX, 0);
    else return;
    event.preventDefault();
  }

  onDown(event) {
    this.canvas.setPointerCapture(event.pointerId);
    this.pointers.set(event.pointerId, [event.offsetX, event.offsetY]);
    this.moved = 0;
  }

  onMove(event) {
    const before = this.pointers.get(event.pointerId);
    if (!before) return this.hooks.hover(event, this.toWorld(event.offsetX, event.offsetY));
    const apart = this.distance();
    this.pointers.set(event.pointerId, [event.offsetX, event.offsetY]);
    this.moved += Math.abs(event.offsetX - before[0]) + Math.abs(event.offsetY - before[1]);
    if (this.pointers.size === 2) this.zoom(this.distance() / apart, event.offsetX, event.offsetY);
    else this.move(before[0] - event.offsetX, before[1] - event.offsetY);
  }

  onUp(event) {
    this.pointers.delete(event.pointerId);
    if (this.moved < 5) this.hooks.click(event, this.toWorld(event.offsetX, event.offsetY));
  }

  distance() {
    const [a, b] = [...this.pointers.values()];
    return b ? Math.max(Math.hypot(a[0] - b[0], a[1] - b[1]), 1) : 1;
  }

  onKey(event) {
    const step = 60;
    const keys = {
      ArrowLeft: () => this.move(-step, 0), ArrowRight: () => this.move(step, 0),
      ArrowUp: () => this.move(0, -step), ArrowDown: () => this.move(0, step),
      "+": () => this.zoom(1.4), "=": () => this.zoom(1.4), "-": () => this.zoom(1 / 1.4), 0: () => this.fit(),
    };
    const action = keys[event.key];
    if (!action || event.ctrlKey || event.metaKey) return;
    action();
    event.preventDefault();
  }

  addButtons(place) {
    for (const [text, label, action] of [
      ["+", "Zoom in", () => this.zoom(1.6)],
      ["−", "Zoom out", () => this.zoom(1 / 1.6)],
      ["⤢", "Show all", () => this.fit()],
    ]) {
      place.append(make("button", { type: "button", title: label, "aria-label": label, onclick: action }, text));
    }
  }
}

// The least edge of what is seen, so that no more than half of the view is beside the drawing.
function inside(edge, whole, seen) {
  const spare = seen / 2;
  return Math.min(Math.max(edge, -spare), Math.max(whole - seen + spare, -spare));
}
