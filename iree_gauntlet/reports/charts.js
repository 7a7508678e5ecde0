// Charts of a page: each picture gets a button that puts uPlot in its place.
"use strict";
(() => {
  const data = JSON.parse(document.getElementById("charts").textContent);
  const colour = (name) => () => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const [ink, faint, rule, paper] = ["--ink", "--faint", "--rule", "--paper"].map(colour);
  const digits = (value) => value.toLocaleString("en", { maximumSignificantDigits: Number.isInteger(value) ? 15 : 6 });
  const drawn = [];

  const element = (name, text, attributes = {}) => {
    const made = document.createElement(name);
    made.textContent = text;
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    return made;
  };

  // A part of a line is text, or the number of a word of the point's origin; ~number is of the point before it.
  const written = (parts, here, before) => {
    const words = parts.map((part) => (typeof part === "string" ? part : part < 0 ? before[~part] : here[part]));
    const same = parts.some((part) => part < 0 && before[~part] === here[~part] && parts.includes(~part));
    return same || words.some((word) => !word) ? "" : words.join("");
  };

  const changes = (chart) => (plot) => {
    const { ctx, bbox } = plot;
    ctx.save();
    ctx.strokeStyle = ink();
    ctx.lineWidth = devicePixelRatio;
    for (const [at, dashed] of chart.changes) {
      const x = plot.valToPos(at - 0.5, "x", true);
      if (x < bbox.left || x > bbox.left + bbox.width) continue;
      ctx.setLineDash(dashed ? [4, 6] : []);
      ctx.beginPath();
      ctx.moveTo(x, bbox.top);
      ctx.lineTo(x, bbox.top + bbox.height);
      ctx.stroke();
    }
    ctx.restore();
  };

  const open = (figure, chart, button) => {
    const origins = data.tracks[chart.track].map((number) => data.origins[number]);
    const last = chart.values.length - 1;
    const places = chart.values.map((_, place) => place);
    const place = element("div", "", { tabindex: "0", role: "application", "aria-label": button.title });
    const said = element("div", "", { class: "point", "aria-live": "polite" });
    const help = "Drag to zoom, double-click for all; click a point for its run. Keys: ← and → for points, + and − to zoom, 0 for all.";
    figure.querySelector("svg").replaceWith(place);
    button.replaceWith(element("p", help, { class: "help" }), said);
    const disturbed = new Set(chart.disturbed);
    const series = [
      { label: "run", value: (_, at) => (at === null ? "–" : `${origins[at][0]}, ${origins[at][1]}`) },
      { label: chart.unit || "value", stroke: ink, width: 1.5, points: { show: last < 300, size: 6, fill: ink },
        value: (_, value) => (value === null ? "–" : digits(value)) },
      { label: "busy machine", stroke: ink, paths: () => null, points: { show: true, size: 7, fill: paper },
        value: (_, value) => (value === null ? "no" : "yes") },
      { label: "golden", stroke: ink, dash: [6, 4], points: { show: false },
        value: (_, value) => (value === null ? "–" : digits(value)) },
    ];
    const columns = [
      places,
      chart.values,
      chart.values.map((value, at) => (disturbed.has(at) ? value : null)),
      places.map(() => chart.level),
    ];
    const axes = [
      { stroke: faint, grid: { stroke: rule, width: 1 }, ticks: { stroke: rule }, space: 110,
        incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000],
        values: (_, at) => at.map((value) => (origins[value] ? origins[value][1] : "")) },
      { stroke: faint, grid: { stroke: rule, width: 1 }, ticks: { stroke: rule },
        size: (_, values) => 30 + 7 * Math.max(...(values || [""]).map((text) => text.length)),
        values: (_, values) => values.map(digits) },
    ];
    const width = () => figure.clientWidth || 320;
    const padding = [16, 60, 0, 0];
    const options = { padding, width: width(), height: 280, series, axes, scales: { x: { time: false } },
      cursor: { points: { show: false } }, hooks: { drawAxes: [changes(chart)] } };
    const plot = new uPlot(options, columns, place);
    drawn.push(plot);
    new ResizeObserver(() => plot.setSize({ width: width(), height: 280 })).observe(figure);

    let point = last;
    const show = (at) => {
      point = Math.min(Math.max(at, 0), last);
      const lines = chart.tooltip_lines.map((parts) => written(parts, origins[point], origins[Math.max(point - 1, 0)]));
      said.replaceChildren(element("strong", `${digits(chart.values[point])} ${chart.unit}`));
      for (const line of lines.filter(Boolean)) {
        const isLink = line.startsWith("https://");
        said.append(isLink ? element("a", line, { href: line }) : element("code", line));
      }
      const { min, max } = plot.scales.x;
      if (point < min || point > max) zoom(point - (max - min) / 2, point + (max - min) / 2);
      aim();
    };
    const aim = () => plot.setCursor({ left: plot.valToPos(point, "x"), top: plot.valToPos(chart.values[point], "y") });
    const zoom = (from, to) => {
      plot.setScale("x", { min: Math.max(from, 0), max: Math.min(to, last) });
      queueMicrotask(aim);
    };
    const around = (share) => {
      const { min, max } = plot.scales.x;
      const half = Math.max(((max - min) * share) / 2, 1);
      zoom(point - half, point + half);
    };
    const keys = {
      ArrowLeft: () => show(point - 1),
      ArrowRight: () => show(point + 1),
      Home: () => show(0),
      End: () => show(last),
      "+": () => around(0.5),
      "-": () => around(2),
      0: () => zoom(0, last),
    };
    place.addEventListener("keydown", (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey || !(event.key in keys)) return;
      event.preventDefault();
      keys[event.key]();
    });
    plot.over.addEventListener("click", () => plot.cursor.idx !== null && show(plot.cursor.idx));
    show(last);
    place.focus();
  };

  for (const figure of document.querySelectorAll("figure[data-chart]")) {
    const chart = data.charts[Number(figure.dataset.chart)];
    const button = element("button", "Zoom", { type: "button", title: figure.querySelector("svg").getAttribute("aria-label") });
    button.addEventListener("click", () => open(figure, chart, button));
    figure.append(button);
  }
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => drawn.forEach((plot) => plot.redraw(false)));
})();
