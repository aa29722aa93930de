"use strict";
(() => {
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];
  const state = document.getElementById("state");
  const search = document.getElementById("search");
  const rows = document.getElementById("rows");

  // --- the list: search, selection, keys ---------------------------------------------------------------------
  const matches = (row, words) => words.every((word) => {
    const at = word.indexOf(":");
    const key = word.slice(0, at), rest = word.slice(at + 1);
    if (key === "tag") return row.dataset.tags.split("\n").includes(rest);
    if (key === "state") return row.dataset.state === rest;
    return row.dataset.text.includes(word);
  });
  const filter = () => {
    if (!rows) return;
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    for (const row of rows.rows) {
      row.hidden = !matches(row, words);
      shown += !row.hidden;
    }
    document.getElementById("found").textContent = words.length ? `${shown} of ${rows.rows.length}` : "";
    const address = new URL(location.href);
    words.length ? address.searchParams.set("q", search.value) : address.searchParams.delete("q");
    history.replaceState(null, "", address);
  };
  const selected = () => (rows ? all("input[name=run]:checked", rows) : []);
  const count = () => {
    const button = document.getElementById("compare");
    if (!button) return;
    button.disabled = selected().length < 2;
    button.textContent = selected().length ? `Compare selected (${selected().length})` : "Compare selected";
  };
  if (rows) {
    search.value = new URL(location.href).searchParams.get("q") || "";
    search.addEventListener("input", filter);
    search.addEventListener("keydown", (event) => { if (event.key === "Enter") event.preventDefault(); });
    rows.addEventListener("change", count);
    rows.addEventListener("click", (event) => {
      const tag = event.target.closest("[data-tag]");
      if (!tag) return;
      search.value = /\s/.test(tag.dataset.tag) ? tag.dataset.tag : `tag:${tag.dataset.tag}`;
      filter();
    });
    filter();
    count();
  }
  let at = null;
  const move = (step) => {
    const shown = [...rows.rows].filter((row) => !row.hidden);
    if (!shown.length) return;
    const next = shown[Math.max(0, Math.min(shown.length - 1, shown.indexOf(at) + step))];
    if (at) at.classList.remove("at");
    at = next;
    at.classList.add("at");
    at.querySelector("a").focus();
  };
  addEventListener("keydown", (event) => {
    const typing = event.target.closest("input[type=search],input[type=text],textarea,select");
    if (event.key === "Escape" && typing) { typing.blur(); return; }
    if (typing || event.ctrlKey || event.metaKey || event.altKey) return;
    const here = () => at || document.activeElement.closest("tr");
    if (event.key === "/" && search) { event.preventDefault(); search.focus(); search.select(); }
    else if (event.key === "j" && rows) move(1);
    else if (event.key === "k" && rows) move(-1);
    else if (event.key === "x" && rows && here()) { here().querySelector("input").click(); }
    else if (event.key === "c" && rows && selected().length > 1) document.getElementById("list").requestSubmit();
    else if (event.key === "r") location.assign(document.body.dataset.root + "/");
  });
  addEventListener("submit", (event) => {
    const asked = event.submitter && event.submitter.dataset.sure;
    if (asked && !confirm(asked)) event.preventDefault();
  });

  // --- live: parts of the page are replaced when they change ---------------------------------------------------
  // What a reader has set stays: open details, hidden curves, a typed text, the focus.
  const keep = (old) => ({
    open: all("details[open] > summary", old).map((s) => s.textContent),
    off: all(".key.off", old).map((k) => k.dataset.series),
    checked: all("input:checked", old).map((i) => i.value),
    hidden: old.hidden,
    at: old.classList.contains("at"),
    focus: old.contains(document.activeElement) ? all("a,button,input,summary", old).indexOf(document.activeElement) : -1,
  });
  const restore = (node, kept) => {
    for (const summary of all("details > summary", node)) summary.parentNode.open = kept.open.includes(summary.textContent);
    for (const key of all(".key", node)) if (kept.off.includes(key.dataset.series)) key.dispatchEvent(new Event("click"));
    for (const input of all("input[type=checkbox]", node)) input.checked = kept.checked.includes(input.value);
    node.hidden = kept.hidden;
    if (kept.at) { node.classList.add("at"); at = node; }
    if (kept.focus >= 0) { const target = all("a,button,input,summary", node)[kept.focus]; if (target) target.focus(); }
  };
  const parse = (markup) => {
    const box = document.createElement("template");
    box.innerHTML = markup; // made by this server from escaped text; the policy lets no script in it run
    return box.content.firstElementChild;
  };
  const find = (key) => all("[data-part]").find((node) => node.dataset.part === key);
  const place = (node, key, order) => {
    const kind = key.split(":")[0];
    const home = kind === "run" ? rows : document.querySelector("main[data-list]");
    if (!home) return;
    const after = order.slice(order.indexOf(key) + 1).map(find).find((other) => other && other.parentNode === home);
    home.insertBefore(node, after || null);
  };
  // What is being pressed is not replaced before it is released: the browser would take the press and the release
  // for two elements, and there would be no click. Nor is a button under the pointer; both for a while only.
  const HOLD = 3000;
  const held = new Map(); // key: [markup, order, when it arrived]
  let pressed = null;
  const release = () => {
    pressed = null;
    for (const [key, [markup, order]] of [...held]) update({ parts: { [key]: markup }, order });
  };
  addEventListener("pointerdown", (event) => { pressed = event.target; }, true);
  for (const end of ["pointerup", "pointercancel", "dragend"]) addEventListener(end, () => setTimeout(release), true);
  const isHeld = (key, old) => {
    const isBusy = old && ((pressed && old.contains(pressed)) || old.querySelector("form.inline button:hover, form.inline button:active"));
    if (!isBusy) return false;
    const since = held.has(key) ? held.get(key)[2] : Date.now();
    return Date.now() - since < HOLD;
  };
  const update = ({ parts, order }) => {
    const typing = document.activeElement && document.activeElement.closest("textarea,input[type=text]");
    for (const key of Object.keys(parts)) {
      const old = find(key), markup = parts[key];
      if (old && typing && old.contains(typing) && typing.value) continue; // a reason that is being written
      if (isHeld(key, old)) {
        if (!held.has(key)) setTimeout(() => { const late = held.get(key); if (late) update({ parts: { [key]: late[0] }, order: late[1] }); }, HOLD);
        held.set(key, [markup, order, held.has(key) ? held.get(key)[2] : Date.now()]);
        continue;
      }
      if (markup === null) { held.delete(key); if (old) old.remove(); continue; }
      held.delete(key);
      const node = parse(markup);
      if (old) { const kept = keep(old); old.replaceWith(node); window.tacitPage.enhance(node); restore(node, kept); }
      else { place(node, key, order); window.tacitPage.enhance(node); }
    }
    filter();
    count();
    document.title = document.title.replace(/^.*(?= · tacit$)/, (before) => (document.querySelector("h1") || { textContent: before }).textContent);
    document.body.dataset.updates = String(Number(document.body.dataset.updates || 0) + 1);
  };
  if (document.body.dataset.live) {
    const source = new EventSource(document.body.dataset.live);
    source.addEventListener("open", () => { state.textContent = "live"; state.className = "live"; });
    source.addEventListener("parts", (event) => update(JSON.parse(event.data)));
    source.addEventListener("error", () => { state.textContent = "not connected: is `tacit ui` running?"; state.className = "lost"; });
    addEventListener("pagehide", () => source.close());
  }
})();
