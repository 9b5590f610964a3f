"use strict";

(() => {
  const SIGNS = { kept: "=", removed: "−", rewritten: "~", added: "+" };
  const MAX_LINES = 16; // of the largest message
  const MIN_TOKENS_A_LINE = 20;
  const SNIPPET_CHARACTERS_A_LINE = 180; // more than fit
  const NARROW_CHARACTERS_A_LINE = 30; // that fit on a phone
  const CHARACTERS_BEFORE_HIT = 15;
  const PIECES = /[^]{1,20000}(?:[^\n]{0,20000}\n)?/gu; // of a text, each laid out when it comes into sight
  const MAX_MARKS = 500; // in a piece
  const byId = (id) => document.getElementById(id);
  const number = new Intl.NumberFormat("en-US").format;
  const counted = (count, noun) => `${number(count)} ${noun}${count === 1 ? "" : "s"}`;

  // Texts only ever get into the page as text nodes, never as markup.
  function element(tag, attributes = {}, ...children) {
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    made.append(...children);
    return made;
  }

  function drawing(tag, attributes, ...children) {
    const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    made.append(...children);
    return made;
  }

  // ---------------------------------------------------------------- theme

  const themes = ["auto", "light", "dark"];
  const themeButton = byId("theme");

  function setTheme(theme) {
    document.documentElement.dataset.theme = theme;
    themeButton.textContent = `Theme: ${theme}`;
  }

  themeButton.hidden = false;
  themeButton.addEventListener("click", () => {
    setTheme(themes[(themes.indexOf(document.documentElement.dataset.theme ?? "auto") + 1) % themes.length]);
  });

  const { plots, views, messages } = JSON.parse(byId("data").textContent);

  // ---------------------------------------------------------------- plots: the sizes at the pointer

  for (const [index, plot] of document.querySelectorAll(".plot").entries()) {
    const { first, width, step_label, series } = plots[index];
    const area = plot.querySelector(".area");
    const pointer = plot.querySelector(".pointer");
    const readout = plot.nextElementSibling;
    area.addEventListener("pointermove", ({ clientX }) => {
      const box = area.getBoundingClientRect();
      const step = first + Math.round(Math.min(Math.max((clientX - box.left) / box.width, 0), 1) * width);
      const sizes = series.map(({ label, points }) => {
        const point = points.findLast(([at]) => at <= step);
        return `${label} ${point === undefined ? "–" : number(point[1])}`;
      });
      for (const end of ["x1", "x2"]) pointer.setAttribute(end, `${((step - first) / width) * 100}%`);
      pointer.setAttribute("visibility", "visible");
      readout.textContent = `${step_label} ${number(step)}: ${sizes.join(", ")}`;
    });
    area.addEventListener("pointerleave", () => {
      pointer.setAttribute("visibility", "hidden");
      readout.textContent = "";
    });
  }

  // ---------------------------------------------------------------- the conversation

  if (views.length === 0) return;

  const grid = byId("rows");
  const searchField = byId("search");
  const reader = byId("reader");
  const readerBody = byId("reader-body");

  let rows = []; // of the view: {status, before, after, element, blocks}
  let visible = []; // the rows that the filters and the search leave
  let current = null; // {row, side} of the message that Tab goes to
  let reading = null; // the same of the message in the reader
  let column = "before"; // the side to go on, where a row has both
  let hidden = new Set(); // statuses
  let query = null; // a regular expression, null without a search
  let hitsOf = new Map(); // from a message to their number, for the query

  function showView(view) {
    const changed = view.rows.some(([status]) => status !== "kept");
    byId("drawn").classList.toggle("unchanged", !changed);
    const sizes = view.rows.flatMap(([, ...blocks]) =>
      blocks.filter(Boolean).map(([, , message]) => messages[message].tokens),
    );
    const tokensALine = Math.max(
      MIN_TOKENS_A_LINE,
      sizes.reduce((largest, size) => Math.max(largest, size), 0) / MAX_LINES,
    );
    const linesOf = (message) => Math.max(1, Math.round(message.tokens / tokensALine));
    rows = view.rows.map(([status, before, after]) => {
      const row = { status, before, after: changed ? after : null, blocks: {} };
      const sides = changed ? ["before", "after"] : ["before"];
      row.element = element("div", { role: "row", class: `row ${status}` });
      let lines = 1;
      for (const side of sides) {
        const cell = element("div", { role: "gridcell", class: `cell ${side}` });
        if (row[side]) {
          const message = messages[row[side][2]];
          const blockLines = linesOf(message);
          lines = Math.max(lines, blockLines);
          cell.append((row.blocks[side] = blockOf(row, side, message, blockLines)));
        } else {
          cell.classList.add("gap");
        }
        row.element.append(cell);
      }
      row.element.style.setProperty("--lines", lines);
      return row;
    });
    showMap(view, changed);
    showFilters(view);
    setCurrent(null);
    applyFilters();
  }

  function blockOf(row, side, message, lines) {
    const [index, step] = row[side];
    const block = element(
      "button",
      { type: "button", class: `block is-${message.kind}`, tabindex: "-1" },
      element("span", { class: "sign", "aria-hidden": "true" }, SIGNS[row.status]),
      element("span", { class: "unseen" }, `${row.status} `),
      element("span", { class: "index" }, String(index + 1)),
      element("span", { class: "kind" }, message.kind),
      element("span", { class: "snippet" }),
      element("span", { class: "tokens" }, number(message.tokens), element("span", { class: "unseen" }, " tokens")),
    );
    block.style.setProperty("--lines", lines);
    fillSnippet(block.querySelector(".snippet"), message, lines);
    block.addEventListener("click", () => {
      column = side;
      openReader(row, side);
    });
    block.addEventListener("focus", () => setCurrent({ row, side }));
    return block;
  }

  // The beginning of a message, or what is around the first hit.
  function fillSnippet(snippet, message, lines) {
    const hits = message.parts.map(([, , text]) => (query === null ? -1 : text.search(query)));
    const first = Math.max(
      hits.findIndex((hit) => hit >= 0),
      0,
    );
    let start = hits[first] > lines * NARROW_CHARACTERS_A_LINE ? hits[first] - CHARACTERS_BEFORE_HIT : 0;
    let left = lines * SNIPPET_CHARACTERS_A_LINE;
    const pieces = message.marks.flatMap((mark) => [element("span", { class: "mark" }, mark), " "]);
    if (first > 0) pieces.push("… ");
    for (const [kind, name, text] of message.parts.slice(first)) {
      if (left <= 0) break;
      // Spaces fall together, so a little more is looked at.
      const piece = text
        .slice(start, start + 2 * left)
        .replace(/\s+/g, " ")
        .slice(0, left);
      if (name) pieces.push(element("span", { class: "name" }, ...highlighted(name)), " ");
      pieces.push(start > 0 ? "…" : "", ...highlighted(kind === "reasoning" ? `(${piece})` : piece), " ");
      left -= piece.length;
      start = 0;
    }
    snippet.replaceChildren(...pieces);
  }

  function showFilters(view) {
    const numbers = { kept: 0, removed: 0, rewritten: 0, added: 0 };
    for (const [status] of view.rows) numbers[status]++;
    hidden = new Set();
    byId("filters").replaceChildren(
      ...Object.entries(numbers)
        .filter(([, count]) => count > 0)
        .map(([status, count]) => {
          const sign = element("span", { class: "sign", "aria-hidden": "true" }, SIGNS[status]);
          const button = element(
            "button",
            { type: "button", class: status, "aria-pressed": "true" },
            sign,
            ` ${number(count)} ${status}`,
          );
          button.addEventListener("click", () => {
            const show = hidden.delete(status) || !hidden.add(status);
            button.setAttribute("aria-pressed", String(show));
            applyFilters();
          });
          return button;
        }),
    );
  }

  // ---------------------------------------------------------------- the map: both conversations to scale

  function showMap(view, changed) {
    const sides = changed ? ["before", "after"] : ["before"];
    const spans = sides.map((side) => spansOf(side, changed));
    const totals = spans.map((found) => found.reduce((sum, { tokens }) => sum + tokens, 0));
    const scale = Math.max(1, ...totals, ...view.lines.map(([, tokens]) => tokens)) / 100;
    const percent = (tokens) => `${(tokens / scale).toFixed(3)}%`;
    byId("map").replaceChildren(
      ...sides.map((side, index) => {
        const track = drawing(
          "svg",
          { class: "track" },
          ...spans[index].map(({ tone, start, tokens }) =>
            drawing("rect", { class: tone, x: percent(start), width: percent(tokens), height: "100%" }),
          ),
          ...view.lines.map(([, tokens], number) => limit(number, percent(tokens), "-15%", "115%")),
        );
        track.addEventListener("click", ({ clientX }) => {
          const { left, width } = track.getBoundingClientRect();
          goTo(side, ((clientX - left) / width) * 100 * scale);
        });
        return element(
          "div",
          { class: "bar" },
          element("span", { class: "bar-label" }, changed ? side : "now"),
          track,
          element("span", { class: "bar-total" }, number(totals[index])),
        );
      }),
    );
    const kinds = changed ? [] : [...new Set(rows.map((row) => messages[row.before[2]].kind))];
    byId("map-legend").replaceChildren(
      ...kinds.map((kind) => legend(drawing("rect", { class: `kind-${kind}`, width: "100%", height: "100%" }), kind)),
      ...view.lines.map(([label, tokens], index) =>
        legend(limit(index, "50%", "0", "100%"), label, element("b", {}, number(tokens))),
      ),
    );
    byId("columns-header").replaceChildren(
      ...sides.map((side, index) => {
        const count = counted(rows.filter((row) => row[side]).length, "message");
        return element("span", {}, element("b", {}, changed ? side : ""), `${count}, ${number(totals[index])} tokens`);
      }),
    );
  }

  const limit = (index, x, y1, y2) => drawing("line", { class: `limit limit-${index % 3}`, x1: x, x2: x, y1, y2 });

  const legend = (swatch, ...texts) =>
    element("li", {}, drawing("svg", { class: "swatch", "aria-hidden": "true" }, swatch), ...texts);

  // Neighbours of the same colour are one rectangle.
  function spansOf(side, changed) {
    const found = [];
    let start = 0;
    for (const row of rows) {
      if (!row[side]) continue;
      const { kind, tokens } = messages[row[side][2]];
      const tone = changed ? `status-${row.status}` : `kind-${kind}`;
      if (found.at(-1)?.tone === tone) found.at(-1).tokens += tokens;
      else found.push({ tone, start, tokens });
      start += tokens;
    }
    return found;
  }

  function goTo(side, position) {
    let start = 0;
    for (const row of rows) {
      start += row[side] ? messages[row[side][2]].tokens : 0;
      if (start < position || !visible.includes(row)) continue;
      row.blocks[side]?.focus({ preventScroll: true });
      row.element.scrollIntoView({ block: "center" });
      return;
    }
  }

  // ---------------------------------------------------------------- filters and search

  function applyFilters() {
    const hits = (row) => {
      const found = new Set([row.before, row.after].filter(Boolean).map(([, , message]) => messages[message]));
      return [...found].reduce((sum, message) => sum + hitsOf.get(message), 0);
    };
    const shown = rows.filter((row) => !hidden.has(row.status));
    const counts = query === null ? [] : shown.map(hits);
    visible = query === null ? shown : shown.filter((_, index) => counts[index] > 0);
    grid.replaceChildren(...visible.map((row) => row.element));
    byId("nothing").hidden = visible.length > 0;
    const all = counts.reduce((sum, count) => sum + count, 0);
    byId("hits").textContent = query === null ? "" : `${counted(all, "hit")} in ${counted(visible.length, "message")}`;
    if (current === null || !visible.includes(current.row)) setCurrent(placeIn(visible[0]));
  }

  function search(text) {
    query = text === "" ? null : new RegExp(text.replace(/[.*+?^${}()|[\]\\]/g, "\\$&"), "gi");
    hitsOf = new Map(query === null ? [] : messages.map((message) => [message, countHits(message)]));
    for (const row of rows) {
      for (const side of Object.keys(row.blocks)) {
        const block = row.blocks[side];
        fillSnippet(
          block.querySelector(".snippet"),
          messages[row[side][2]],
          Number(block.style.getPropertyValue("--lines")),
        );
      }
    }
    applyFilters();
  }

  function countHits(message) {
    return message.parts
      .flatMap(([, name, text]) => [name, text])
      .reduce((sum, text) => {
        let count = 0;
        query.lastIndex = 0;
        while (query.exec(text) !== null) count++;
        return sum + count;
      }, 0);
  }

  // The text as text nodes, hits in marks.
  function highlighted(text) {
    if (query === null) return [text];
    const pieces = [];
    let end = 0;
    query.lastIndex = 0;
    for (let hit; pieces.length < 2 * MAX_MARKS && (hit = query.exec(text)) !== null; end = query.lastIndex) {
      pieces.push(text.slice(end, hit.index), element("mark", {}, hit[0]));
    }
    return [...pieces, text.slice(end)];
  }

  let waiting;
  searchField.addEventListener("input", () => {
    clearTimeout(waiting);
    waiting = setTimeout(() => search(searchField.value), 120);
  });
  searchField.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && searchField.value !== "") {
      event.preventDefault();
      searchField.value = "";
    } else if (event.key !== "Enter" && event.key !== "ArrowDown") {
      return;
    }
    clearTimeout(waiting);
    search(searchField.value);
    if (event.key !== "Escape" && visible.length > 0) {
      event.preventDefault();
      focusOn(placeIn(visible[0]));
    }
  });

  // ---------------------------------------------------------------- moving about

  const narrow = matchMedia("(max-width: 46rem)");
  const isShown = (row, side) => side in row.blocks && !(side === "after" && row.status === "kept" && narrow.matches);

  function placeIn(row) {
    if (row === undefined) return null;
    return { row, side: [column, "before", "after"].find((side) => isShown(row, side)) };
  }

  // Only one message can be reached with Tab; the arrow keys move on from it.
  function setCurrent(place) {
    current?.row.blocks[current.side].setAttribute("tabindex", "-1");
    current = place;
    current?.row.blocks[current.side].setAttribute("tabindex", "0");
  }

  function focusOn(place) {
    if (place !== null) place.row.blocks[place.side].focus();
  }

  function neighbour(distance) {
    const index = visible.indexOf(current.row) + distance;
    return placeIn(visible[Math.min(Math.max(index, 0), visible.length - 1)]);
  }

  grid.addEventListener("keydown", (event) => {
    const rowsAway = { ArrowDown: 1, ArrowUp: -1, ArrowRight: 0, ArrowLeft: 0, Home: -Infinity, End: Infinity }[
      event.key
    ];
    if (rowsAway === undefined || event.ctrlKey || event.altKey || event.metaKey) return;
    event.preventDefault();
    column = { ArrowRight: "after", ArrowLeft: "before" }[event.key] ?? column;
    focusOn(neighbour(rowsAway));
  });

  document.addEventListener("keydown", (event) => {
    const typing = event.target.closest("input, select, textarea, dialog");
    if (event.key !== "/" || typing || event.ctrlKey || event.altKey || event.metaKey) return;
    event.preventDefault();
    searchField.focus();
    searchField.select();
  });

  // ---------------------------------------------------------------- the reader

  function openReader(row, side) {
    reading = { row, side };
    const { status } = row;
    const versions = status === "rewritten" ? ["after", "before"] : [side];
    const [index, step] = row[side];
    const { kind, tokens, marks } = messages[row[side][2]];
    byId("reader-title").className = status;
    byId("reader-title").replaceChildren(
      element("span", { class: "sign", "aria-hidden": "true" }, SIGNS[status]),
      `${kind === "note" ? kind : `${kind} message`} ${number(index + 1)}`,
    );
    const details = [status, ...(step === null ? [] : [`step ${number(step)}`]), ...marks];
    byId("reader-details").textContent = [
      ...details,
      ...(status === "rewritten" ? [] : [counted(tokens, "token")]),
    ].join(", ");
    readerBody.replaceChildren(...versions.map((name) => versionOf(row, name)));
    byId("previous").disabled = visible.indexOf(row) <= 0;
    byId("next").disabled = visible.indexOf(row) === visible.length - 1;
    if (!reader.open) reader.showModal();
    readerBody.scrollTop = 0;
    readerBody.focus();
    readerBody.querySelector("mark")?.scrollIntoView({ block: "center" });
  }

  function versionOf(row, side) {
    const message = messages[row[side][2]];
    const heading = element("h3", {}, `${side} `, element("span", {}, counted(message.tokens, "token")));
    const version = element("div", { class: `version ${row.status}` }, ...message.parts.map(partOf));
    if (row.status === "rewritten") version.prepend(heading);
    return version;
  }

  function partOf([kind, name, text]) {
    const heading = element("div", { class: "part-name" }, `${kind} `, element("b", {}, ...highlighted(name)));
    const pieces = (text.match(PIECES) ?? []).map((piece) => element("div", { class: "piece" }, ...highlighted(piece)));
    const part = element("div", { class: "part" }, heading);
    if (pieces.length > 0) part.append(element("pre", { dir: "auto" }, ...pieces));
    return part;
  }

  function turn(distance) {
    const next = visible[visible.indexOf(reading.row) + distance];
    if (next !== undefined) openReader(next, placeIn(next).side);
  }

  byId("previous").addEventListener("click", () => turn(-1));
  byId("next").addEventListener("click", () => turn(1));
  byId("close").addEventListener("click", () => reader.close());
  reader.addEventListener("click", (event) => {
    if (event.target === reader) reader.close(); // the backdrop
  });
  reader.addEventListener("close", () => {
    // The browser has gone back to where the reader was opened, and the user may be somewhere else already.
    if (grid.contains(document.activeElement)) focusOn(reading);
  });
  reader.addEventListener("keydown", (event) => {
    const distance = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (distance === undefined || event.ctrlKey || event.altKey || event.metaKey) return;
    event.preventDefault();
    turn(distance);
  });

  // ---------------------------------------------------------------- start

  byId("drawn").hidden = false;
  byId("view")?.addEventListener("change", (event) => {
    showView(views[event.target.value]);
  });
  showView(views[0]);
})();
