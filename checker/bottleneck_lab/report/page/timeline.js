"use strict";

// The step timeline: lanes of rows, each row sorted and free of overlap, so that a pixel costs one binary search
// however many events lie under it; in a row of several categories, a sum over them. Text from the trace is only ever drawn or set as textContent, never parsed.

const LABEL_WIDTH = 190;
const ROW_HEIGHT = 17;
const LANE_GAP = 9;
const RULER_HEIGHT = 26;
const OVERVIEW_HEIGHT = 44;
const OVERVIEW_ROWS = 6;
const LEAST_BETWEEN_EDGES = 8;
const MIN_SPAN_NS = 50;
const SUMMED_NAMES = 4;
const TYPES = { u8: Uint8Array, u16: Uint16Array, u32: Uint32Array, f64: Float64Array };

async function decodeColumns(element, columns) {
  const packed = element.textContent;
  const bytes = Uint8Array.fromBase64 ? Uint8Array.fromBase64(packed) : Uint8Array.from(atob(packed), (c) => c.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  const buffer = await new Response(stream).arrayBuffer();
  element.remove();
  return Object.fromEntries(columns.map((column) => [column.name, new TYPES[column.type](buffer, column.offset, column.count)]));
}

// Rows are stored one after the other; a start is written as the distance from the end of the event before it in the row.
function unpackRows(head, columns) {
  const count = columns.dur.length;
  const start = new Float64Array(count);
  const busy = new Float64Array(count + 1);
  let from = 0;
  const rows = head.rows.map((row) => {
    let now = 0;
    let sum = 0;
    let mixed = false;
    for (let i = from; i < from + row.count; i++) {
      start[i] = now + columns.gap[i];
      busy[i] = sum;
      now = start[i] + columns.dur[i];
      sum += columns.dur[i];
      mixed ||= columns.category[i] !== columns.category[from];
    }
    from += row.count;
    return { ...row, mixed, from: from - row.count, to: from };
  });
  return { start, busy, dur: columns.dur, name: columns.name, category: columns.category, rows };
}

// Index of the first element of sorted `values[from, to)` that is > `wanted`.
function firstAfter(values, wanted, from, to) {
  let low = from;
  let high = to;
  while (low < high) {
    const middle = (low + high) >>> 1;
    if (values[middle] <= wanted) low = middle + 1;
    else high = middle;
  }
  return low;
}

function formatDuration(ns) {
  for (const [size, unit] of [[1e9, "s"], [1e6, "ms"], [1e3, "µs"]]) {
    if (Math.abs(ns) >= size) {
      const value = ns / size;
      return `${value.toFixed(value < 10 ? 2 : value < 100 ? 1 : 0)} ${unit}`;
    }
  }
  return `${Math.round(ns)} ns`;
}

// A stretch as `lab diagnose` and `lab report --at` take it: in one unit, with enough digits for its length.
function formatStretch(from, to) {
  const [size, unit] = to - from >= 1e6 || to >= 1e9 ? [1e6, "ms"] : [1e3, "us"];
  const digits = Math.max(0, Math.min(3, 3 - Math.floor(Math.log10((to - from) / size))));
  return `${(from / size).toFixed(digits)}-${(to / size).toFixed(digits)} ${unit}`;
}

// A round step that leaves about `pixels` between marks.
function rulerStep(nsPerPixel, pixels) {
  const wanted = nsPerPixel * pixels;
  const power = 10 ** Math.floor(Math.log10(wanted));
  return [1, 2, 5, 10].map((factor) => factor * power).find((step) => step >= wanted);
}

class Timeline {
  constructor(root, head, events) {
    this.root = root;
    this.head = head;
    this.events = events;
    this.canvas = root.querySelector("canvas.lanes");
    this.overview = root.querySelector("canvas.overview");
    this.scroller = root.querySelector(".scroller");
    this.tip = root.querySelector(".tip");
    this.detail = root.querySelector(".detail");
    this.invitation = this.detail.textContent;
    this.sums = root.querySelector(".sums");
    this.marked = null;
    this.from = 0;
    this.to = head.span_ns;
    this.selected = -1;
    this.matches = null;
    this.layOut();
    this.readColours();
    this.listen();
    this.resize();
  }

  // Vertical places of rows, and one header line where a group (rank or process) begins.
  layOut() {
    let y = RULER_HEIGHT;
    let group = null;
    this.groups = [];
    this.head.lanes.forEach((lane) => {
      if (lane.group !== group) {
        group = lane.group;
        this.groups.push({ label: group, y, emulated: lane.emulated });
        y += 22;
      }
      lane.y = y;
      for (const row of this.events.rows.filter((row) => row.lane === lane.index)) {
        row.y = y;
        y += ROW_HEIGHT;
      }
      lane.bottom = y;
      y += LANE_GAP;
    });
    this.height = y;
    this.root.querySelector(".spacer").style.height = `${y}px`;
    this.scroller.style.height = `min(${y + 2}px, 68vh)`;
  }

  readColours() {
    const style = getComputedStyle(document.documentElement);
    const get = (name) => style.getPropertyValue(name).trim();
    this.ink = { text: get("--text"), soft: get("--soft"), line: get("--line"), ground: get("--card"), band: get("--band"), accent: get("--accent") };
    this.palette = this.head.categories.map((category) => {
      const colour = get(`--${category.colour}`) || get("--cat-other");
      return { ...category, fill: category.gap ? this.hatch(colour) : colour, colour, text: get("--on-category") };
    });
  }

  // Gaps are hatched: told from work by texture, not by colour alone.
  hatch(colour) {
    const tile = document.createElement("canvas");
    tile.width = tile.height = 8;
    const pen = tile.getContext("2d");
    pen.globalAlpha = 0.3;
    pen.fillStyle = colour;
    pen.fillRect(0, 0, 8, 8);
    pen.globalAlpha = 1;
    pen.strokeStyle = colour;
    pen.lineWidth = 2;
    pen.beginPath();
    for (const shift of [-8, 0, 8]) {
      pen.moveTo(shift, 8);
      pen.lineTo(shift + 8, 0);
    }
    pen.stroke();
    return this.canvas.getContext("2d").createPattern(tile, "repeat");
  }

  resize() {
    const ratio = window.devicePixelRatio || 1;
    this.width = this.scroller.clientWidth;
    this.labels = this.width < 620 ? 96 : LABEL_WIDTH;
    this.viewHeight = Math.min(this.scroller.clientHeight, this.height);
    for (const [canvas, height] of [[this.canvas, this.viewHeight], [this.overview, OVERVIEW_HEIGHT]]) {
      canvas.width = Math.round(this.width * ratio);
      canvas.height = Math.round(height * ratio);
      canvas.style.width = `${this.width}px`;
      canvas.style.height = `${height}px`;
      canvas.getContext("2d").setTransform(ratio, 0, 0, ratio, 0, 0);
    }
    this.redraw();
  }

  redraw() {
    if (this.pending) return;
    this.pending = requestAnimationFrame(() => {
      this.pending = 0;
      this.draw();
      this.drawOverview();
    });
  }

  get scale() {
    return (this.width - this.labels) / (this.to - this.from);
  }

  x(ns) {
    return this.labels + (ns - this.from) * this.scale;
  }

  time(x) {
    return this.from + (x - this.labels) / this.scale;
  }

  draw() {
    const pen = this.canvas.getContext("2d");
    const top = this.scroller.scrollTop;
    pen.clearRect(0, 0, this.width, this.viewHeight);
    pen.font = "11px system-ui, sans-serif";
    pen.textBaseline = "middle";
    this.drawSteps(pen, top);
    for (const row of this.events.rows) {
      const y = row.y - top;
      if (y > -ROW_HEIGHT && y < this.viewHeight) this.drawRow(pen, row, y);
    }
    this.drawEdges(pen, RULER_HEIGHT, Math.min(this.viewHeight, this.height - top));
    this.drawMarked(pen);
    this.drawLabels(pen, top);
    this.drawRuler(pen);
  }

  drawMarked(pen) {
    if (!this.marked) return;
    const left = Math.max(this.labels, this.x(this.marked.from));
    const right = Math.min(this.width, this.x(this.marked.to));
    if (right <= left) return;
    pen.fillStyle = this.ink.accent;
    pen.globalAlpha = 0.12;
    pen.fillRect(left, RULER_HEIGHT, right - left, this.viewHeight);
    pen.globalAlpha = 1;
    pen.fillRect(left, RULER_HEIGHT, 1, this.viewHeight);
    pen.fillRect(right - 1, RULER_HEIGHT, 1, this.viewHeight);
  }

  // What every lane did in a stretch: the time with anything in it, and the names that took most of it.
  sumUp(from, to) {
    const { start, dur, name, rows } = this.events;
    return this.head.lanes.map((lane) => {
      const names = new Map();
      let busy = 0;
      rows.filter((row) => row.lane === lane.index).forEach((row, depth) => {
        for (let i = Math.max(row.from, firstAfter(start, from, row.from, row.to) - 1); i < row.to && start[i] < to; i++) {
          const time = Math.min(to, start[i] + dur[i]) - Math.max(from, start[i]);
          if (time <= 0) continue;
          if (!depth) busy += time;
          names.set(name[i], (names.get(name[i]) || 0) + time);
        }
      });
      const longest = [...names].sort((a, b) => b[1] - a[1]).slice(0, SUMMED_NAMES);
      return { lane, busy, longest };
    });
  }

  mark(from, to) {
    this.marked = to > from ? { from: Math.max(0, from), to: Math.min(this.head.span_ns, to) } : null;
    this.sums.hidden = !this.marked;
    if (this.marked) this.showSums(this.marked);
    this.redraw();
  }

  showSums({ from, to }) {
    const length = to - from;
    this.root.dataset.marked = formatStretch(from, to);
    this.sums.querySelector("b").textContent = formatDuration(length);
    this.sums.querySelector("code").textContent = formatStretch(from, to);
    const body = this.sums.querySelector("tbody");
    body.replaceChildren(...this.sumUp(from, to).map(({ lane, busy, longest }) => {
      const row = document.createElement("tr");
      const named = longest.map(([id, time]) => `${this.label(id)} ${formatDuration(time)}`).join(", ");
      for (const text of [lane.group, lane.label, formatDuration(busy), `${(100 * busy / length).toFixed(1)}%`, named || "nothing"]) {
        row.appendChild(document.createElement("td")).textContent = text;
      }
      row.children[2].className = row.children[3].className = "number";
      return row;
    }));
  }

  // Every second step is shaded, so that steps can be counted without reading.
  drawSteps(pen, top) {
    pen.fillStyle = this.ink.band;
    this.head.steps.forEach(([start, end], index) => {
      if (index % 2 || end < this.from || start > this.to) return;
      const left = Math.max(this.labels, this.x(start));
      pen.fillRect(left, RULER_HEIGHT, Math.min(this.width, this.x(end)) - left, Math.min(this.viewHeight, this.height - top));
    });
  }

  // A mark at the edges of each step, through all lanes; none where they would be all that is seen.
  drawEdges(pen, begin, height) {
    const edges = [...new Set(this.head.steps.flat())].filter((edge) => edge >= this.from && edge <= this.to);
    if (edges.length * LEAST_BETWEEN_EDGES > this.width) return;
    pen.fillStyle = this.ink.soft;
    for (const edge of edges) pen.fillRect(this.x(edge), begin, 1, height);
  }

  drawRow(pen, row, y) {
    const { start, dur } = this.events;
    const scale = this.scale;
    let i = Math.max(row.from, firstAfter(start, this.from, row.from, row.to) - 1);
    while (i < row.to && start[i] < this.to) {
      const left = Math.max(this.labels, this.x(start[i]));
      const right = Math.min(this.width, this.x(start[i] + dur[i]));
      if (dur[i] * scale >= 1.5) {
        if (right > left) this.drawEvent(pen, i, left, y, right - left);
        i++;
      } else {
        i = this.drawPixel(pen, row, i, y);
      }
    }
  }

  drawEvent(pen, i, left, y, width) {
    const look = this.palette[this.events.category[i]];
    const nameId = this.events.name[i];
    pen.globalAlpha = this.matches && !this.matches[nameId] ? 0.15 : look.gap ? 1 : 1 - (nameId % 3) * 0.14;
    pen.fillStyle = look.fill;
    pen.fillRect(left, y, Math.max(1, width - (width > 4 ? 1 : 0)), ROW_HEIGHT - 2);
    pen.globalAlpha = 1;
    if (i === this.selected) {
      pen.strokeStyle = this.ink.text;
      pen.lineWidth = 2;
      pen.strokeRect(left + 1, y + 1, Math.max(1, width - 3), ROW_HEIGHT - 4);
    }
    if (width > 34 && pen.canvas === this.canvas) this.drawName(pen, this.label(nameId), look, left + 4, y, width - 8);
  }

  // What is drawn of a name: kernels by what they do, without namespaces and parameters.
  label(id) {
    return this.head.labels[id] || this.head.names[id];
  }

  drawName(pen, text, look, left, y, room) {
    const fits = Math.floor(room / 6);
    const own = text.replace(/^emulated: /, "");  // The heading of the lane says so already.
    const tail = fits < 10 ? 0 : Math.floor(fits * 0.4);  // Names often differ at their end only.
    const head = own.slice(0, Math.max(1, fits - 1 - tail));
    const shown = own.length > fits ? `${head}…${own.slice(own.length - tail)}` : own;
    if (look.gap) {
      pen.fillStyle = this.ink.ground;
      pen.fillRect(left - 2, y + 2, Math.min(room, pen.measureText(shown).width) + 4, ROW_HEIGHT - 6);
    }
    pen.fillStyle = look.gap ? this.ink.text : look.text;
    pen.fillText(shown, left, y + ROW_HEIGHT / 2 - 0.5, room);
  }

  // Events narrower than a pixel: drawn as the share of that pixel's time in which the row was busy, in the colour
  // of the category that takes most of it.
  drawPixel(pen, row, i, y) {
    const { start, dur, busy, category } = this.events;
    const column = Math.floor(this.x(start[i]));
    let next = Math.max(i + 1, firstAfter(start, this.time(column + 1), i, row.to));
    // Only the last of them can reach beyond the pixel: one that is wide enough is drawn by itself.
    if (next > i + 1 && dur[next - 1] * this.scale >= 1.5) next--;
    const covered = busy[next - 1] + dur[next - 1] - busy[i];
    if (column >= this.labels) {
      const shown = !this.matches || this.anyMatch(i, next);
      pen.globalAlpha = shown ? Math.min(1, Math.max(0.22, covered * this.scale)) : 0.1;
      pen.fillStyle = this.palette[row.mixed ? this.longestCategory(i, next) : category[i]].colour;
      pen.fillRect(column, y, 1, ROW_HEIGHT - 2);
      pen.globalAlpha = 1;
    }
    return next;
  }

  longestCategory(from, to) {
    const { dur, category } = this.events;
    const sums = new Float64Array(this.palette.length);
    for (let i = from; i < to; i++) sums[category[i]] += dur[i];
    return sums.indexOf(Math.max(...sums));
  }

  anyMatch(from, to) {
    for (let i = from; i < to; i++) if (this.matches[this.events.name[i]]) return true;
    return false;
  }

  drawLabels(pen, top) {
    pen.fillStyle = this.ink.ground;
    pen.fillRect(0, 0, this.labels, this.viewHeight);
    pen.fillStyle = this.ink.line;
    pen.fillRect(this.labels - 1, 0, 1, this.viewHeight);
    for (const group of this.groups) {
      pen.fillStyle = this.ink.ground;
      pen.fillRect(0, group.y - top, this.width, 20);
      pen.fillStyle = this.ink.text;
      pen.font = "600 12px system-ui, sans-serif";
      pen.fillText(group.label, 10, group.y - top + 11, this.width - 20);
      pen.fillStyle = this.ink.line;
      pen.fillRect(0, group.y - top, this.width, 1);
    }
    pen.font = "11px system-ui, sans-serif";
    for (const lane of this.head.lanes) {
      if (lane.bottom < top || lane.y > top + this.viewHeight) continue;
      const y = Math.max(lane.y - top, RULER_HEIGHT) + ROW_HEIGHT / 2;
      if (y > lane.bottom - top) continue;
      pen.fillStyle = this.ink.soft;
      pen.fillText(lane.label, 18, y, this.labels - 26);
    }
  }

  drawRuler(pen) {
    pen.fillStyle = this.ink.ground;
    pen.fillRect(0, 0, this.width, RULER_HEIGHT);
    pen.fillStyle = this.ink.line;
    pen.fillRect(0, RULER_HEIGHT - 1, this.width, 1);
    const step = rulerStep(1 / this.scale, 110);
    for (let mark = Math.ceil(this.from / step) * step; mark <= this.to; mark += step) {
      const x = this.x(mark);
      pen.fillStyle = this.ink.line;
      pen.fillRect(x, RULER_HEIGHT - 6, 1, 6);
      pen.fillStyle = this.ink.soft;
      if (x < this.width - 60) pen.fillText(mark === 0 ? "0" : formatDuration(mark), x + 4, RULER_HEIGHT / 2);
    }
    pen.fillStyle = this.ink.soft;
    pen.fillText(`${formatDuration(this.to - this.from)} shown`, 10, RULER_HEIGHT / 2, this.labels - 16);
  }

  // The whole capture in small, with the part that is shown below framed: a device's work and gaps, or several devices' gaps.
  drawOverview() {
    const pen = this.overview.getContext("2d");
    const idle = this.events.rows.filter((row) => row.gaps);
    const rows = (idle.length > 1 ? idle : this.events.rows.filter((row) => row.overview)).slice(0, OVERVIEW_ROWS);
    const kept = { from: this.from, to: this.to };
    pen.clearRect(0, 0, this.width, OVERVIEW_HEIGHT);
    Object.assign(this, { from: 0, to: this.head.span_ns });
    const height = Math.max(6, Math.min(ROW_HEIGHT, (OVERVIEW_HEIGHT - 8) / Math.max(1, rows.length)));
    rows.forEach((row, index) => this.drawRow(pen, row, 4 + index * height));
    this.drawEdges(pen, 0, OVERVIEW_HEIGHT);
    const left = this.x(kept.from);
    const right = this.x(kept.to);
    Object.assign(this, kept);
    pen.fillStyle = this.ink.ground;
    pen.globalAlpha = 0.72;
    pen.fillRect(this.labels, 0, left - this.labels, OVERVIEW_HEIGHT);
    pen.fillRect(right, 0, this.width - right, OVERVIEW_HEIGHT);
    pen.globalAlpha = 1;
    pen.strokeStyle = this.ink.accent;
    pen.lineWidth = 2;
    pen.strokeRect(left + 1, 1, Math.max(2, right - left - 2), OVERVIEW_HEIGHT - 2);
    pen.fillStyle = this.ink.soft;
    pen.font = "11px system-ui, sans-serif";
    pen.textBaseline = "middle";
    pen.fillText("whole capture", 10, OVERVIEW_HEIGHT / 2, this.labels - 16);
  }

  show(from, to) {
    const all = this.head.span_ns;
    const span = Math.min(all, Math.max(Math.min(MIN_SPAN_NS, all), to - from));
    this.from = Math.min(Math.max(0, from), all - span);
    this.to = this.from + span;
    this.root.dataset.shownNs = String(Math.round(span));
    this.redraw();
  }

  zoom(factor, x = this.labels + (this.width - this.labels) / 2) {
    const centre = this.time(Math.max(this.labels, x));
    this.show(centre - (centre - this.from) * factor, centre + (this.to - centre) * factor);
  }

  pan(share) {
    const shift = (this.to - this.from) * share;
    this.show(this.from + shift, this.to + shift);
  }

  eventAt(x, y) {
    const inside = y + this.scroller.scrollTop;
    const row = this.events.rows.find((row) => inside >= row.y && inside < row.y + ROW_HEIGHT);
    if (!row || x < this.labels || y < RULER_HEIGHT) return -1;
    const { start, dur } = this.events;
    const slack = 1 / this.scale;
    const i = firstAfter(start, this.time(x) + slack, row.from, row.to) - 1;
    return i >= row.from && start[i] + dur[i] + slack >= this.time(x) ? i : -1;
  }

  describe(i) {
    const { start, dur, name, category } = this.events;
    return [this.head.names[name[i]], formatDuration(dur[i]), this.palette[category[i]].means, `starts at ${formatDuration(start[i])}`];
  }

  hover(event) {
    const i = this.eventAt(event.offsetX, event.offsetY);
    this.tip.hidden = i < 0;
    if (i < 0) return;
    const [name, length, kind, begin] = this.describe(i);
    this.tip.querySelector("b").textContent = name;
    this.tip.querySelector("span").textContent = `${length} · ${kind} · ${begin}`;
    const box = this.root.getBoundingClientRect();
    const left = Math.min(event.clientX - box.left + 14, box.width - this.tip.offsetWidth - 4);
    this.tip.style.left = `${Math.max(4, left)}px`;
    this.tip.style.top = `${event.clientY - box.top + 18}px`;
  }

  select(i) {
    this.selected = i;
    this.detail.textContent = i < 0 ? this.invitation : this.describe(i).join(" · ");
    this.redraw();
  }

  // The next-longest gap each time: the first is where to look first.
  nextGap() {
    const { start, dur } = this.events;
    if (!this.gaps) {
      this.gaps = [];
      for (const row of this.events.rows) if (row.gaps) for (let i = row.from; i < row.to; i++) this.gaps.push(i);
      this.gaps.sort((a, b) => dur[b] - dur[a]);
      this.gapAt = -1;
    }
    if (!this.gaps.length) return;
    this.gapAt = (this.gapAt + 1) % this.gaps.length;
    const i = this.gaps[this.gapAt];
    this.show(start[i] - dur[i] * 0.6, start[i] + dur[i] * 1.6);
    const row = this.events.rows.find((row) => i >= row.from && i < row.to);
    this.scroller.scrollTop = Math.max(0, row.y - this.viewHeight / 2);
    this.select(i);
    this.mark(start[i], start[i] + dur[i]);
  }

  find(text) {
    const wanted = text.trim().toLowerCase();
    this.matches = wanted ? this.head.names.map((name) => name.toLowerCase().includes(wanted)) : null;
    this.redraw();
  }

  listen() {
    const actions = {
      in: () => this.zoom(0.5), out: () => this.zoom(2), all: () => this.show(0, this.head.span_ns), gap: () => this.nextGap(),
      mark: () => this.mark(this.from, this.to), clear: () => this.mark(0, 0),
      marked: () => { if (this.marked) this.show(this.marked.from, this.marked.to); },
      left: () => this.pan(-0.2), right: () => this.pan(0.2),
      up: () => { this.scroller.scrollTop -= 60; }, down: () => { this.scroller.scrollTop += 60; },
    };
    const keys = {
      "+": "in", "=": "in", w: "in", "-": "out", s: "out", 0: "all", Home: "all", g: "gap", m: "mark", z: "marked", Escape: "clear",
      ArrowLeft: "left", a: "left", ArrowRight: "right", d: "right", ArrowUp: "up", ArrowDown: "down",
    };
    for (const button of this.root.querySelectorAll("button[data-action]")) button.addEventListener("click", actions[button.dataset.action]);
    this.canvas.addEventListener("keydown", (event) => {
      const action = keys[event.key];
      if (!action || event.ctrlKey || event.metaKey || event.altKey) return;
      event.preventDefault();
      actions[action]();
    });
    this.root.querySelector("input[type=search]").addEventListener("input", (event) => this.find(event.target.value));
    this.scroller.addEventListener("scroll", () => this.redraw());
    this.canvas.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
    this.canvas.addEventListener("pointermove", (event) => (this.drag ? this.dragTo(event) : this.hover(event)));
    this.canvas.addEventListener("pointerleave", () => { this.tip.hidden = true; });
    this.canvas.addEventListener("pointerdown", (event) => this.grab(event));
    this.canvas.addEventListener("pointerup", (event) => this.letGo(event));
    this.canvas.addEventListener("dblclick", (event) => this.zoomToEvent(this.eventAt(event.offsetX, event.offsetY)));
    this.overview.addEventListener("pointerdown", (event) => this.jump(event));
    this.overview.addEventListener("pointermove", (event) => event.buttons && this.jump(event));
    new ResizeObserver(() => this.resize()).observe(this.scroller);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { this.readColours(); this.redraw(); });
  }

  // The wheel scrolls the page until the timeline has the focus, so that nobody is caught in it while reading.
  wheel(event) {
    if (!event.ctrlKey && !event.metaKey && document.activeElement !== this.canvas) return;
    event.preventDefault();
    if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) this.pan((event.deltaX || event.deltaY) / this.width);
    else this.zoom(Math.exp(Math.max(-80, Math.min(80, event.deltaY)) * 0.005), event.offsetX);
  }

  grab(event) {
    this.canvas.focus({ preventScroll: true });
    this.canvas.setPointerCapture(event.pointerId);
    this.drag = { x: event.offsetX, y: event.offsetY, from: this.from, to: this.to, top: this.scroller.scrollTop, moved: false, marks: event.shiftKey || event.offsetY < RULER_HEIGHT };
    this.tip.hidden = true;
  }

  dragTo(event) {
    const drag = this.drag;
    drag.moved ||= Math.abs(event.offsetX - drag.x) + Math.abs(event.offsetY - drag.y) > 4;
    if (!drag.moved) return;
    if (drag.marks) {
      this.marked = { from: this.time(Math.max(this.labels, Math.min(drag.x, event.offsetX))), to: this.time(Math.max(drag.x, event.offsetX)) };
      this.redraw();
      return;
    }
    const shift = (drag.x - event.offsetX) * ((drag.to - drag.from) / (this.width - this.labels));
    this.scroller.scrollTop = drag.top + drag.y - event.offsetY;
    this.show(drag.from + shift, drag.to + shift);
  }

  // A drag along the ruler, or with Shift, marks that stretch of time and sums it up; a click selects.
  letGo(event) {
    const drag = this.drag;
    this.drag = null;
    if (!drag) return;
    if (!drag.moved) this.select(this.eventAt(event.offsetX, event.offsetY));
    else if (drag.marks) this.mark(this.time(Math.max(this.labels, Math.min(drag.x, event.offsetX))), this.time(Math.max(drag.x, event.offsetX)));
  }

  zoomToEvent(i) {
    if (i < 0) return;
    const { start, dur } = this.events;
    this.show(start[i] - dur[i] * 0.1, start[i] + dur[i] * 1.1);
  }

  jump(event) {
    const span = this.to - this.from;
    const centre = ((event.offsetX - this.labels) / (this.width - this.labels)) * this.head.span_ns;
    this.show(centre - span / 2, centre + span / 2);
  }
}

async function start() {
  const root = document.getElementById("timeline");
  if (!root) return;
  const head = JSON.parse(document.getElementById("timeline-head").textContent);
  const columns = await decodeColumns(document.getElementById("timeline-data"), head.columns);
  const timeline = new Timeline(root, head, unpackRows(head, columns));
  requestAnimationFrame(() => requestAnimationFrame(() => {
    root.dataset.ready = String(Math.round(performance.now()));
    root.dataset.shownNs = String(Math.round(timeline.to - timeline.from));
  }));
}

start();
