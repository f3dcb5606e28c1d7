"use strict";
// The search: every word must be one of a result's words; a word that no result has matches parts of words.
// The words are also the address's fragment, so a search can be linked to: page.html#q=bf16+causal+d%3D80.
(() => {
  const data = JSON.parse(document.getElementById("results").textContent);
  const field = document.getElementById("search");
  const section = document.getElementById("found");
  const [answer, body] = section.querySelectorAll("tbody");
  const note = section.querySelector("p");
  const shown = 200;
  const vocabulary = new Set();
  for (const result of data) {
    result.set = new Set(result.words.split(" "));
    for (const word of result.set) vocabulary.add(word);
  }
  const cell = (row, text, kind) => {
    const td = row.insertCell();
    td.textContent = text;
    if (kind) td.className = kind;
  };
  // One line for each target: does it work, how exact, how fast.
  const say = (place, results) => {
    const count = (outcome) => results.filter((result) => result.outcome === outcome).length;
    const { emulated, card } = results[0];
    const [passed, failed] = [count("passed"), count("failed")];
    const ran = passed + failed;
    const state = failed ? "failed" : passed ? "passed" : "skipped";
    const verdict = failed ? `no: ${failed} of ${ran} fail` : passed ? `yes: ${passed} of ${ran} pass` : "skipped";
    const worst = results.reduce((a, b) => ((b.share ?? -1) > (a.share ?? -1) ? b : a));
    const timed = results.filter((result) => result.speed);
    const row = answer.insertRow();
    cell(row, place);
    cell(row, verdict + (emulated ? "; never on a card" : ""), state + (emulated ? " emulated" : ""));
    cell(row, worst.exact ? `error ${worst.exact.replace(" / ", ", bound ")} (${Math.round(worst.share * 100)} %)` : "not compared here");
    cell(row, timed.length ? timed[0].speed + (timed.length > 1 ? ` (and ${timed.length - 1} more rows)` : "") : "not timed" + (card || !emulated ? " in these runs" : ": emulated"));
  };
  const search = () => {
    const words = field.value.toLowerCase().split(/[\s,]+/).filter(Boolean);
    section.hidden = words.length === 0;
    history.replaceState(null, "", words.length ? "#" + new URLSearchParams({ q: words.join(" ") }) : " ");
    body.replaceChildren();
    answer.replaceChildren();
    if (section.hidden) return;
    const fits = (result, word) => (vocabulary.has(word) ? result.set.has(word) : result.words.includes(word));
    const found = data.filter((result) => words.every((word) => fits(result, word)));
    const places = new Map();
    for (const result of found) places.set(result.place, [...(places.get(result.place) ?? []), result]);
    for (const [place, results] of places) say(place, results);
    for (const result of found.slice(0, shown)) {
      const row = body.insertRow();
      cell(row, result.case, "id");
      cell(row, result.place);
      cell(row, result.outcome + (result.reason ? ": " + result.reason : ""), result.outcome + (result.emulated ? " emulated" : ""));
      cell(row, result.exact, "number");
      cell(row, result.speed || (result.emulated ? "not timed: emulated" : ""), "number");
    }
    const of = (outcome) => found.filter((result) => result.outcome === outcome).length;
    note.textContent = found.length
      ? `${found.length} results: ${of("passed")} passed, ${of("failed")} failed, ${of("skipped")} skipped` +
        (found.length > shown ? `; the first ${shown} are listed` : "")
      : "nothing fits all of these words";
  };
  field.addEventListener("input", search);
  const linked = new URLSearchParams(location.hash.slice(1)).get("q");
  if (linked) {
    field.value = linked;
    search();
  }
})();
