"use strict";

// Draws the charts of the page, keeps those of a group at the same place, and follows the colours of the reader.
// All that the page tells stands in it without this.

(() => {
  const PAPER = 680; // pixels of a chart on paper
  const CONFIG = { displaylogo: false, displayModeBar: false, responsive: true };
  const palettes = JSON.parse(document.getElementById("palettes").textContent);
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const touch = window.matchMedia("(pointer: coarse)");
  const waiting = [...document.querySelectorAll(".chart")];
  const figures = new Map();
  let printing = false;
  const ranges = new Map(); // of each group of charts, what it shows
  let following = false;

  function paint(figure) {
    const colours = palettes[dark.matches && !printing ? "dark" : "light"];
    for (const trace of figure.data) {
      const colour = colours[trace.meta];
      trace.marker.color = colour;
      if (trace.line) trace.line.color = colour;
      if (trace.marker.line) trace.marker.line.color = colour;
    }
    const layout = figure.layout;
    for (const shape of layout.shapes) shape.line.color = colours[shape.legendgroup];
    for (const name of Object.keys(layout).filter((one) => /^[xy]axis/.test(one))) {
      Object.assign(layout[name], { gridcolor: colours.grid, linecolor: colours.quiet, tickcolor: colours.quiet });
    }
    layout.font.color = colours.quiet;
    layout.hoverlabel = { bgcolor: colours.raised, bordercolor: colours.quiet, font: { color: colours.text } };
    layout.width = printing ? PAPER : undefined;
  }

  function draw(chart) {
    const figure = JSON.parse(chart.parentElement.querySelector("script").textContent);
    const others = [...chart.closest(".charts").querySelectorAll(".chart")];
    figure.layout.yaxis.fixedrange = true; // the script fits it to what is seen
    if (touch.matches) figure.layout.dragmode = false; // a finger scrolls the page
    paint(figure);
    figures.set(chart, figure);
    window.Plotly.newPlot(chart, figure.data, figure.layout, CONFIG);
    for (const one of document.querySelectorAll(".chart svg, #js-plotly-tester")) {
      one.setAttribute("aria-hidden", "true"); // the chart has a label of its own
    }
    chart.on("plotly_relayout", (change) => {
      const range = change["xaxis.range"] || [change["xaxis.range[0]"], change["xaxis.range[1]"]];
      if (range.every(Number.isFinite)) show(others, range);
    });
    chart.on("plotly_hover", (event) => {
      follow(others, chart, (one) => window.Plotly.Fx.hover(one, { xval: event.xvals[0] }, "xy"));
    });
    chart.on("plotly_unhover", () => follow(others, chart, (one) => window.Plotly.Fx.unhover(one)));
  }

  function follow(charts, but, act) {
    if (following) return;
    following = true;
    for (const one of charts) if (one !== but && figures.has(one)) act(one);
    following = false;
  }

  // The values of a chart between two places, as its axis counts them.
  function seen(figure, [low, high]) {
    const isLog = figure.layout.yaxis.type === "log";
    const values = [];
    for (const trace of figure.data.filter((one) => one.yaxis === "y")) {
      trace.x.forEach((x, at) => {
        if (x >= low && x <= high && trace.y[at] !== null) values.push(trace.y[at]);
      });
    }
    for (const shape of figure.layout.shapes) if (shape.yref === "y" && values.length) values.push(shape.y0);
    return isLog ? values.map(Math.log10) : values;
  }

  function show(charts, range) {
    const group = charts[0].closest(".charts");
    const before = ranges.get(group) || [];
    if (range.every((end, at) => end === before[at])) return; // told by a chart that was just moved
    ranges.set(group, [...range]);
    for (const one of charts.filter((chart) => figures.has(chart))) {
      const values = figures.get(one).layout.yaxis.tickvals ? [] : seen(figures.get(one), range);
      const change = { "xaxis.range": [...range] };
      if (values.length) {
        const low = values.reduce((a, b) => Math.min(a, b));
        const high = values.reduce((a, b) => Math.max(a, b));
        const room = (high - low) * 0.08 || Math.abs(high) * 0.05 || 1;
        change["yaxis.range"] = [low - room, high + room];
      }
      window.Plotly.relayout(one, change);
    }
    for (const button of group.querySelectorAll(".views button")) {
      button.setAttribute("aria-pressed", String(goal(button).every((end, at) => end === range[at])));
    }
  }

  const goal = (button) => [Number(button.dataset.low), Number(button.dataset.high)];

  function repaint() {
    for (const [chart, figure] of figures) {
      paint(figure);
      window.Plotly.react(chart, figure.data, figure.layout, CONFIG);
    }
  }

  function drawNext() {
    if (waiting.length) {
      draw(waiting.shift());
      window.setTimeout(drawNext);
    } else {
      document.body.dataset.drawn = "true";
    }
  }

  for (const views of document.querySelectorAll(".views")) {
    views.hidden = false;
    const charts = [...views.closest(".charts").querySelectorAll(".chart")];
    views.addEventListener("click", (event) => {
      if (event.target.matches("button")) show(charts, goal(event.target));
    });
  }
  dark.addEventListener("change", repaint);
  window.addEventListener("beforeprint", () => {
    printing = true;
    for (const one of document.querySelectorAll("details:not([open])")) {
      one.open = true;
      one.dataset.opened = "true";
    }
    while (waiting.length) draw(waiting.shift());
    repaint();
  });
  window.addEventListener("afterprint", () => {
    printing = false;
    for (const one of document.querySelectorAll("details[data-opened]")) {
      one.open = false;
      delete one.dataset.opened;
    }
    repaint();
  });
  drawNext();
})();
