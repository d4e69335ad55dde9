(() => {
  "use strict";

  const payload = JSON.parse(document.getElementById("excise-charts").textContent);
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const views = new Map();

  /* Columns back into rows; a column of words is a list of words and the index of each row's. */
  const rowsOf = (columns, count) => {
    const rows = Array.from({ length: count }, () => ({}));
    for (const [key, column] of Object.entries(columns)) {
      const words = column.words;
      column.values.forEach((value, i) => {
        if (value !== null) rows[i][key] = words ? words[value] : value;
      });
    }
    return rows;
  };

  /* The theme, with labels that leave the plot half of a narrow page. */
  const themed = (theme, width) => {
    const config = payload.themes[theme];
    const labelLimit = Math.min(config.axisY.labelLimit, Math.round(width * 0.46));
    return { ...config, background: "transparent", axisY: { ...config.axisY, labelLimit } };
  };

  const fit = new ResizeObserver((entries) => {
    for (const { target } of entries) {
      const drawn = views.get(target);
      if (!drawn || target.clientWidth === target.drawnWidth) continue;
      target.drawnWidth = target.clientWidth;
      drawn.view.width(target.clientWidth).runAsync();
    }
  });

  const draw = async (node) => {
    const chart = payload.charts[node.dataset.chart];
    const theme = dark.matches ? "dark" : "light";
    if (node.dataset.theme === theme) return;
    node.dataset.theme = theme;
    const rows = rowsOf(chart.columns, chart.count);
    try {
      if (views.has(node)) views.get(node).finalize();
      const drawn = await window.vegaEmbed(
        node,
        { ...chart.spec, width: node.clientWidth, datasets: { rows } },
        {
          ast: true,
          actions: false,
          mode: "vega-lite",
          renderer: chart.count > 1500 ? "canvas" : "svg",
          config: themed(theme, node.clientWidth),
          tooltip: { theme },
        },
      );
      views.set(node, drawn);
      node.drawnWidth = node.clientWidth;
      fit.observe(node);
      node.dataset.drawn = "yes";
    } catch (error) {
      node.dataset.drawn = "no";
      node.classList.add("failed");
      node.textContent = `This chart could not be drawn: ${error.message}`;
      console.error(error);
    }
  };

  /* Charts near the window first, the others when there is time. */
  const nodes = [...document.querySelectorAll(".chart")];
  const idle = window.requestIdleCallback || ((then) => setTimeout(then, 50));
  const watch = new IntersectionObserver(
    (entries) => {
      for (const entry of entries) {
        if (!entry.isIntersecting) continue;
        watch.unobserve(entry.target);
        draw(entry.target);
      }
    },
    { rootMargin: "600px" },
  );
  nodes.forEach((node) => watch.observe(node));
  const rest = [...nodes];
  const drawNext = () => {
    const node = rest.shift();
    if (node) draw(node).then(() => idle(drawNext));
  };
  idle(drawNext);
  dark.addEventListener("change", () => nodes.forEach(draw));

  for (const button of document.querySelectorAll(".save button")) {
    button.hidden = false;
    button.addEventListener("click", async () => {
      const drawn = views.get(document.getElementById(button.dataset.of));
      if (!drawn) return;
      const link = document.createElement("a");
      link.href = await drawn.view.toImageURL(button.dataset.as, 2);
      link.download = `${button.dataset.name}.${button.dataset.as}`;
      link.click();
    });
  }

  /* The rows of a chart as a table, built when first opened. */
  const show = (value) =>
    typeof value === "number" ? value.toLocaleString("en", { maximumSignificantDigits: 6 }) : value ?? "";
  for (const details of document.querySelectorAll("details[data-of]")) {
    details.addEventListener("toggle", () => {
      const place = details.querySelector(".scroll");
      if (!details.open || place.firstChild) return;
      const chart = payload.charts[details.dataset.of];
      const keys = Object.keys(chart.columns);
      const table = document.createElement("table");
      const numeric = (key) => !chart.columns[key].words;
      const head = table.createTHead().insertRow();
      for (const key of keys) {
        const cell = document.createElement("th");
        cell.scope = "col";
        cell.textContent = key.replaceAll("_", " ");
        if (numeric(key)) cell.className = "number";
        head.append(cell);
      }
      const body = table.createTBody();
      for (const row of rowsOf(chart.columns, chart.count)) {
        const line = body.insertRow();
        for (const key of keys) {
          const cell = line.insertCell();
          cell.textContent = show(row[key]);
          if (numeric(key)) cell.className = "number";
        }
      }
      place.append(table);
    });
  }

  /* Tables: a heading sorts, the field filters. */
  const key = (row, column) => {
    const cell = row.cells[column];
    return "v" in cell.dataset ? Number(cell.dataset.v) : cell.textContent.trim();
  };
  const compare = (a, b) => {
    if (typeof a === "number" && typeof b === "number") return a - b;
    if (typeof a === "number") return -1;
    if (typeof b === "number") return 1;
    return a.localeCompare(b, "en", { numeric: true });
  };
  for (const block of document.querySelectorAll(".table")) {
    const table = block.querySelector("table");
    const body = table.tBodies[0];
    const heads = [...table.tHead.rows[0].cells];
    heads.forEach((head, column) => {
      const button = head.querySelector("button");
      if (!button) return;
      button.addEventListener("click", () => {
        const up = head.getAttribute("aria-sort") !== "ascending";
        heads.forEach((other) => other.hasAttribute("aria-sort") && other.setAttribute("aria-sort", "none"));
        head.setAttribute("aria-sort", up ? "ascending" : "descending");
        const rows = [...body.rows].map((row) => [key(row, column), row]);
        rows.sort((a, b) => (up ? compare(a[0], b[0]) : compare(b[0], a[0])));
        body.append(...rows.map((pair) => pair[1]));
      });
    });
    const tools = block.querySelector(".tools");
    if (!tools) continue;
    tools.hidden = false;
    const field = tools.querySelector("input");
    const count = tools.querySelector("output");
    const texts = new Map([...body.rows].map((row) => [row, row.textContent.toLowerCase()]));
    const filter = () => {
      const words = field.value.toLowerCase().split(/\s+/).filter(Boolean);
      let left = 0;
      for (const [row, text] of texts) {
        row.hidden = !words.every((word) => text.includes(word));
        if (!row.hidden) left += 1;
      }
      count.textContent = words.length ? `${left} of ${texts.size} rows` : `${texts.size} rows`;
    };
    field.addEventListener("input", filter);
    filter();
  }
})();
