"use strict";
(() => {
  const tip = document.getElementById("tip");
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];
  const show = (text, event) => {
    tip.textContent = text;
    tip.hidden = false;
    const box = tip.getBoundingClientRect();
    const flip = event.clientX + 16 + box.width > innerWidth;
    tip.style.left = Math.max(4, flip ? event.clientX - box.width - 12 : event.clientX + 16) + "px";
    tip.style.top = Math.max(4, Math.min(event.clientY + 14, innerHeight - box.height - 4)) + "px";
  };

  const enhanceChart = (svg) => {
    // The page's own tooltip is faster and themed; the browser's would show a second one.
    for (const title of all("title", svg)) {
      if (title.parentNode !== svg) title.parentNode.dataset.tip = title.textContent;
      title.remove();
    }
    const curves = all("[data-points]", svg).map((node) => ({ node, points: JSON.parse(node.dataset.points) }));
    const area = svg.querySelector(".area");
    const cross = document.createElementNS(svg.namespaceURI, "line");
    cross.setAttribute("class", "cross");
    const leave = () => { tip.hidden = true; cross.remove(); };

    const values = (event) => {
      const matrix = svg.getScreenCTM();
      const x = (event.clientX - matrix.e) / matrix.a, y = (event.clientY - matrix.f) / matrix.d;
      const box = area.getBBox();
      if (x < box.x || x > box.x + box.width || y < box.y || y > box.y + box.height) return null;
      const near = curves.filter((c) => !c.node.classList.contains("off") && c.points.length).map((c) =>
        c.points.reduce((best, p) => (Math.abs(p[0] - x) < Math.abs(best[0] - x) ? p : best)));
      if (!near.length) return null;
      const closest = near.reduce((best, p) => (Math.abs(p[0] - x) < Math.abs(best[0] - x) ? p : best));
      for (const [key, value] of [["x1", closest[0]], ["x2", closest[0]], ["y1", box.y], ["y2", box.y + box.height]]) cross.setAttribute(key, value);
      svg.append(cross);
      const same = near.filter((p) => Math.abs(p[0] - closest[0]) < 1.5).sort((a, b) => a[1] - b[1]);
      return [closest[2], ...same.map((p) => p[3])].filter(Boolean).join("\n");
    };
    svg.addEventListener("pointermove", (event) => {
      const mark = event.target.closest("[data-tip]");
      const text = curves.length && area ? values(event) : mark && mark.dataset.tip;
      text ? show(text, event) : leave();
    });
    svg.addEventListener("pointerleave", leave);

    const keys = all(".key", svg);
    if (keys.length) svg.setAttribute("role", "group"); // an image may not hold buttons
    for (const key of keys) {
      const series = all(`.series[data-series="${key.dataset.series}"]`, svg);
      if (!series.length) continue;
      const toggle = () => {
        const off = key.classList.toggle("off");
        for (const node of series) node.classList.toggle("off", off);
        key.setAttribute("aria-pressed", String(!off));
        leave();
      };
      for (const [name, value] of [["role", "button"], ["tabindex", "0"], ["aria-pressed", "true"]]) key.setAttribute(name, value);
      key.addEventListener("click", toggle);
      key.addEventListener("keydown", (event) => {
        if (event.key === "Enter" || event.key === " ") { event.preventDefault(); toggle(); }
      });
    }
  };

  const sortable = (cell) => {
    if (cell.dataset.sort !== undefined) return Number(cell.dataset.sort);
    const number = /^[−+-]?[\d.,]+(e-?\d+)?/.exec(cell.textContent.trim());
    return number ? Number(number[0].replace("−", "-").replaceAll(",", "")) : cell.textContent.trim();
  };
  const enhanceTable = (table) => {
    all("thead th", table).forEach((head, column) => {
      if (!head.textContent.trim()) return;
      const button = document.createElement("button");
      button.type = "button";
      button.append(...head.childNodes);
      head.append(button);
      button.addEventListener("click", () => {
        const up = head.getAttribute("aria-sort") !== "ascending";
        for (const other of all("thead th", table)) other.removeAttribute("aria-sort");
        head.setAttribute("aria-sort", up ? "ascending" : "descending");
        const rows = [...table.tBodies[0].rows].map((row) => [sortable(row.cells[column]), row]);
        const order = (a, b) => (typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b), undefined, { numeric: true }));
        rows.sort(([a], [b]) => (up ? order(a, b) : order(b, a)));
        table.tBodies[0].append(...rows.map(([, row]) => row));
      });
    });
  };

  const copy = async (text) => {
    try { await navigator.clipboard.writeText(text); return true; } catch { /* not allowed here: the older way may be */ }
    const area = document.createElement("textarea");
    area.value = text;
    document.body.append(area);
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    return done;
  };
  const enhanceButton = (button) => {
    button.hidden = false;
    button.addEventListener("click", async () => {
      const done = await copy(button.closest(".code").querySelector("code").textContent);
      button.textContent = done ? "Copied" : "Select and copy by hand";
      setTimeout(() => { button.textContent = "Copy"; }, 1600);
    });
  };
  // of the whole page, or of a part that was replaced
  const enhance = (root) => {
    all("svg.tacit-chart", root).forEach(enhanceChart);
    all("table.sortable", root).forEach(enhanceTable);
    all("button.copy", root).forEach(enhanceButton);
  };
  enhance(document);
  window.tacitPage = { enhance };
  addEventListener("beforeprint", () => { tip.hidden = true; });
})();
