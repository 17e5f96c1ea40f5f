"use strict";

(async () => {
  const root = document.documentElement;
  const figures = JSON.parse(document.getElementById("figures").textContent);
  const charts = [...document.querySelectorAll(".chart")];
  const hidden = {}; // section → names of the lines that the reader put away
  const touch = matchMedia("(pointer: coarse)").matches; // there, dragging scrolls the page

  /* plotly.js travels compressed: a third of its size */
  async function unpack() {
    const packed = Uint8Array.from(atob(document.getElementById("plotly").textContent), (c) => c.charCodeAt(0));
    const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
    const script = document.createElement("script");
    script.textContent = await new Response(stream).text();
    document.head.append(script);
  }

  /* a figure with the page's present colours for its variables */
  function coloured(figure) {
    const style = getComputedStyle(root);
    const text = JSON.stringify(figure);
    return JSON.parse(text.replace(/var\((--[\w-]+)\)/g, (_, name) => style.getPropertyValue(name).trim()));
  }

  const sectionOf = (chart) => chart.closest("section").id;
  const shared = (chart) => /-(rounds|uploaded|downloaded)$/.test(chart.dataset.figure);

  function draw(chart) {
    const figure = figures[chart.dataset.figure];
    chart.hidden = !figure;
    const missing = chart.parentElement.querySelector(".missing");
    if (missing) missing.hidden = Boolean(figure);
    if (!figure) return;
    const { data, layout } = coloured(figure);
    const away = hidden[sectionOf(chart)] ?? new Set();
    if (shared(chart)) for (const trace of data) trace.visible = away.has(trace.name) ? "legendonly" : true;
    layout.dragmode = touch ? false : "zoom";
    layout.font = { family: getComputedStyle(document.body).fontFamily };
    layout.autosize = true;
    Plotly.react(chart, data, layout, { responsive: true, displayModeBar: false });
  }

  /* a line put away in one chart of a section goes from all of them */
  function follow(chart) {
    const names = [...new Set(figures[chart.dataset.figure].data.map((trace) => trace.name))];
    const change = (update) => (event) => {
      const section = sectionOf(chart);
      hidden[section] = update(hidden[section] ?? new Set(), event.data[event.curveNumber].name);
      charts.filter((other) => shared(other) && sectionOf(other) === section).forEach(draw);
      return false;
    };
    const toggled = (away, name) => new Set(away.has(name) ? [...away].filter((n) => n !== name) : [...away, name]);
    const alone = (away, name) =>
      new Set(away.size === names.length - 1 && !away.has(name) ? [] : names.filter((n) => n !== name));
    chart.on("plotly_legendclick", change(toggled));
    chart.on("plotly_legenddoubleclick", change(alone));
  }

  function choose(select) {
    for (const chart of charts.filter((one) => sectionOf(one) === select.dataset.section)) {
      chart.dataset.figure = chart.dataset.figure.replace(/-(flips|votes)-\d+$/, `-$1-${select.value}`);
      if (/-(flips|votes)-\d+$/.test(chart.dataset.figure)) draw(chart);
    }
  }

  function duration(seconds) {
    const steps = [[1, "ms", 1e3], [120, "s", 1], [7200, "min", 1 / 60], [172800, "h", 1 / 3600], [Infinity, "days", 1 / 86400]];
    const [, unit, factor] = steps.find(([bound]) => seconds < bound);
    const value = seconds * factor;
    return `${value.toLocaleString("en", { maximumSignificantDigits: value < 1000 ? 3 : 12, maximumFractionDigits: 0 })} ${unit}`;
  }

  function air() {
    const rates = ["up", "down"].map((way) => 1000 * document.getElementById(`${way}-rate`).valueAsNumber);
    const known = rates.every((rate) => rate > 0);
    for (const row of document.querySelectorAll("tr.air")) {
      const [up, down] = ["up", "down"].map((way, i) => (8 * row.dataset[way]) / rates[i]);
      const times = { up, down, all: row.dataset.rounds * (up + down) };
      for (const cell of row.querySelectorAll("[data-time]")) {
        cell.textContent = known ? duration(times[cell.dataset.time]) : "–";
      }
    }
    let note = "";
    for (const button of document.querySelectorAll(".presets button")) {
      const chosen = button.dataset.up * 1000 === rates[0] && button.dataset.down * 1000 === rates[1];
      button.setAttribute("aria-pressed", chosen);
      if (chosen) note = button.dataset.note;
    }
    document.getElementById("link-note").textContent = note;
  }

  const form = document.querySelector(".link");
  form.addEventListener("input", air);
  form.addEventListener("submit", (event) => event.preventDefault());
  for (const button of form.querySelectorAll("button")) {
    button.addEventListener("click", () => {
      for (const way of ["up", "down"]) document.getElementById(`${way}-rate`).value = button.dataset[way];
      air();
    });
  }
  air();

  await unpack();
  const redraw = () => charts.forEach(draw);
  redraw();
  charts.filter(shared).forEach(follow);
  for (const select of document.querySelectorAll("select")) select.addEventListener("change", () => choose(select));
  for (const query of ["(prefers-color-scheme: dark)", "print"]) matchMedia(query).addEventListener("change", redraw);
  addEventListener("beforeprint", () => (root.classList.add("printing"), redraw()));
  addEventListener("afterprint", () => (root.classList.remove("printing"), redraw()));
  root.dataset.ready = "true"; // for tests
})();
