// Live parts: the server says that something changed, and the part is fetched again. Without scripts the page is a page.
"use strict";

const shortest = 400; // ms between two fetches, however much happens

function follow(part) {
  let last = 0, planned = null, text = null;
  async function refresh() {
    planned = null;
    last = Date.now();
    const answer = await fetch(part.dataset.live, { credentials: "same-origin" }).catch(() => null);
    if (!answer || !answer.ok || answer.redirected) return;
    const html = await answer.text();
    const busy = part.contains(document.activeElement) && document.activeElement.matches("input, select");
    if (html !== text && !busy) replace(part, html);
    text = html;
    part.dataset.loaded = String(last);
  }
  function plan() {
    if (planned === null) planned = setTimeout(refresh, Math.max(0, last + shortest - Date.now()));
  }
  const source = new EventSource("/events");
  source.addEventListener("change", plan);
  source.addEventListener("open", plan); // what happened while the line was down
  setInterval(plan, 1000 * Number(part.dataset.every));
}

function replace(part, html) {
  // Whoever walks the page by keyboard stays where they are.
  const focused = part.contains(document.activeElement) ? document.activeElement : null;
  const where = focused && [focused.tagName, focused.getAttribute("href"), focused.getAttribute("aria-label"), focused.textContent].join("|");
  const scrolled = [...part.querySelectorAll(".wide")].map((each) => [each.scrollLeft, each.scrollTop]);
  const open = new Set([...part.querySelectorAll("details[open]")].map((each) => each.textContent));
  part.innerHTML = html;
  part.querySelectorAll(".wide").forEach((each, at) => { [each.scrollLeft, each.scrollTop] = scrolled[at] || [0, 0]; });
  part.querySelectorAll("details").forEach((each) => { if (open.has(each.textContent)) each.open = true; });
  if (where) {
    const same = [...part.querySelectorAll("a, button, [tabindex]")].find((each) =>
      [each.tagName, each.getAttribute("href"), each.getAttribute("aria-label"), each.textContent].join("|") === where);
    if (same) same.focus({ preventScroll: true });
  }
}

function histogram(chart) {
  const { edges, counts, target, unit } = JSON.parse(chart.dataset.histogram);
  const style = getComputedStyle(document.documentElement);
  const colour = (name) => style.getPropertyValue(name).trim();
  const middles = counts.map((_, at) => (edges[at] + edges[at + 1]) / 2);
  const axis = { stroke: colour("--faint"), grid: { stroke: colour("--line") }, ticks: { stroke: colour("--line") } };
  const shown = target === null ? edges : [...edges, target];
  const low = Math.min(...shown), high = Math.max(...shown), room = (high - low || 1) * 0.05;
  const line = (plot) => {
    if (target === null) return;
    const at = plot.valToPos(target, "x", true);
    plot.ctx.save();
    plot.ctx.strokeStyle = colour("--fail");
    plot.ctx.lineWidth = 2 * devicePixelRatio;
    plot.ctx.beginPath();
    plot.ctx.moveTo(at, plot.bbox.top);
    plot.ctx.lineTo(at, plot.bbox.top + plot.bbox.height);
    plot.ctx.stroke();
    plot.ctx.fillStyle = colour("--fail");
    plot.ctx.font = `${12 * devicePixelRatio}px system-ui`;
    const rest = plot.bbox.left + plot.bbox.width - at, gap = 6 * devicePixelRatio;
    plot.ctx.textAlign = rest > 80 * devicePixelRatio ? "left" : "right";
    plot.ctx.fillText("target", plot.ctx.textAlign === "left" ? at + gap : at - gap, plot.bbox.top + 14 * devicePixelRatio);
    plot.ctx.restore();
  };
  const percent = unit === "share" && { values: (_, ticks) => ticks.map((tick) => `${+(100 * tick).toPrecision(4)}%`) };
  const options = {
    width: chart.clientWidth, height: 240, legend: { show: false }, cursor: { show: false },
    scales: { x: { time: false, range: [low - room, high + room] }, y: { range: (_, __, most) => [0, Math.max(1, most)] } },
    axes: [{ ...axis, ...percent, label: unit && !percent ? `measured (${unit})` : "measured", labelFont: "14px system-ui" }, { ...axis, label: "learners", labelFont: "14px system-ui", labelSize: 22, incrs: [1, 2, 5, 10, 20, 50, 100], size: 40 }],
    series: [{}, { paths: uPlot.paths.bars({ size: [0.9, 60] }), fill: colour("--link"), points: { show: false } }],
    hooks: { draw: [line] },
  };
  const plot = new uPlot(options, [middles, counts], chart);
  addEventListener("resize", () => plot.setSize({ width: chart.clientWidth, height: 240 }));
  chart.dataset.ready = "yes";
}

// Back to the form that was refused, with what was typed; without scripts, a link.
for (const link of document.querySelectorAll("[data-back]")) {
  link.addEventListener("click", (event) => {
    if (history.length < 2) return;
    event.preventDefault();
    history.back();
  });
}
const zone = document.querySelector("[data-browser-zone]");
if (zone) zone.title = `This browser is in ${Intl.DateTimeFormat().resolvedOptions().timeZone}`;
document.querySelectorAll("[data-live]").forEach(follow);
document.querySelectorAll("[data-histogram]").forEach(histogram);
