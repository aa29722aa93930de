"use strict";
(() => {
  const MOST = 200; // rows shown at once: a browser is slow with tens of thousands of inputs
  // the same characters as in markup.py; shown as a replacement, kept in the file
  const shown = (text) => text.replace(/[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ufffe\uffff]/g, "\ufffd");
  const make = (name, options = {}, ...children) => {
    const node = document.createElement(name);
    for (const [key, value] of Object.entries(options)) {
      if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
      else if (key === "text") node.textContent = value;
      else node.setAttribute(key, value);
    }
    node.append(...children);
    return node;
  };

  const problems = (rows) => {
    const found = [];
    for (let level = 0; level + 1 < rows[0].length; level++) {
      const parent = new Map();
      for (const row of rows) {
        const [word, above] = [row[level], row[level + 1]];
        if (above === "") found.push(`level ${level + 1}: ${shown(row[0])} has no word`);
        if (!parent.has(word)) parent.set(word, above);
        else if (parent.get(word) !== above)
          found.push(`${shown(word)} at level ${level} is both ${shown(parent.get(word))} and ${shown(above)} at level ${level + 1}`);
      }
    }
    if (new Set(rows.map((row) => row[row.length - 1])).size > 1) found.push("the highest level must be one word, like *");
    return [...new Set(found)];
  };

  const quote = (cell) => (/[;"\r\n]/.test(cell) ? `"${cell.replaceAll('"', '""')}"` : cell);
  const toCSV = (rows) => rows.map((row) => row.map(quote).join(";") + "\n").join("");

  for (const place of document.querySelectorAll(".editor")) {
    const column = JSON.parse(place.dataset.columnJson), rows = JSON.parse(place.dataset.rows);
    if (!rows.length) { place.replaceChildren(make("p", { text: "This column has no values." })); continue; }
    const filter = make("input", { type: "search", "aria-label": "Filter values", placeholder: "filter", oninput: () => draw() });
    const level = make("select", { "aria-label": "Level" }), word = make("input", { "aria-label": "Word", placeholder: "word" });
    const note = make("p", { role: "status", class: "quiet" }), wrong = make("p", { role: "alert", class: "warning" });
    const table = make("table"), save = make("button", { type: "button", text: `Download ${shown(column)}.csv`, onclick: () => download() });
    const matching = () => {
      const wanted = filter.value.toLowerCase();
      return rows.filter((row) => row.some((cell) => cell.toLowerCase().includes(wanted)));
    };
    const check = () => {
      const found = problems(rows);
      wrong.hidden = !found.length;
      wrong.textContent = found.slice(0, 5).join("; ") + (found.length > 5 ? `; and ${found.length - 5} more` : "");
      save.disabled = found.length > 0;
      const sizes = rows[0].map((_, i) => new Set(rows.map((row) => row[i])).size);
      note.textContent = `Words by level: ${sizes.join(" → ")}.`;
    };
    const draw = () => {
      const height = rows[0].length - 1, some = matching();
      level.replaceChildren(...Array.from({ length: height }, (_, i) => make("option", { value: i + 1, text: `level ${i + 1}` })));
      const head = make("tr", {}, make("th", { scope: "col", text: "value" }),
        ...Array.from({ length: height }, (_, i) => make("th", { scope: "col", text: `level ${i + 1}` })));
      const body = some.slice(0, MOST).map((row) => make("tr", {}, make("th", { scope: "row", text: shown(row[0]) }),
        ...row.slice(1).map((cell, i) => {
          const input = make("input", { "aria-label": `level ${i + 1} of ${shown(row[0])}`,
            onchange: (event) => { row[i + 1] = event.target.value; check(); } });
          input.value = cell;
          return make("td", {}, input);
        })));
      const caption = some.length > MOST ? `The first ${MOST} of ${some.length} values; filter to see others.` : `${some.length} values`;
      table.replaceChildren(make("caption", { text: caption }), make("thead", {}, head), make("tbody", {}, ...body));
      check();
    };
    const change = (action) => () => { action(Number(level.value)); const kept = level.value; draw(); level.value = kept; };
    const buttons = {
      "Set for all values shown by the filter": (i) => { for (const row of matching()) row[i] = word.value; },
      "Add a level below": (i) => { for (const row of rows) row.splice(i, 0, row[i - 1]); },
      "Remove the level": (i) => { if (rows[0].length > 2) for (const row of rows) row.splice(i, 1); },
    };
    const download = () => {
      const url = URL.createObjectURL(new Blob([toCSV(rows)], { type: "text/csv;charset=utf-8" }));
      make("a", { href: url, download: `${column}.csv` }).click();
      setTimeout(() => URL.revokeObjectURL(url), 10000); // after the browser has read it
    };
    place.replaceChildren(
      make("p", {}, filter),
      make("p", {}, level, word, ...Object.entries(buttons).map(([text, action]) => make("button", { type: "button", text, onclick: change(action) }))),
      wrong, make("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": `Hierarchy of ${shown(column)}` }, table), note, make("p", {}, save));
    draw();
  }
})();
