"use strict";
// The search: every word must be one of a result's words, by any of its names; a word that no result has matches parts
// of words. What no result has at all is named: left out where it may be talk, as in a question, but not where it holds a
// digit or names a dtype or a vendor, because that nothing of it was run is an answer too. The words are also the address's fragment, so a search can be linked to: page.html#q=bf16+causal+d%3D80.
(() => {
  const data = JSON.parse(document.getElementById("results").textContent);
  const field = document.getElementById("search");
  const section = document.getElementById("found");
  const [answer, body] = section.querySelectorAll("tbody");
  const note = section.querySelector("p");
  const shown = 200;
  // Names of the same thing.
  const synonyms = [
    ["bf16", "bfloat16"],
    ["f16", "float16", "fp16", "half"],
    ["f32", "float32", "fp32"],
    ["hip", "amd", "rocm"],
    ["cuda", "nvidia"],
  ];
  // Words of questions match whole words only: "on" is in "attention".
  const talk = new Set(
    ("a an and any are as at be been can case cases compare compared do does error exact exactly fast for from good has " +
      "have how i in is it kernel kernels many me much not of on or our pass perform precise run runs show slow speed " +
      "supported that the there this to use used was well what when where which with without work working works you")
      .split(" "),
  );
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
  const namesOf = (word) => synonyms.find((names) => names.includes(word)) ?? [word];
  // What a word of the query means: a test of results, or null where no result fits.
  const meaning = (word) => {
    const names = namesOf(word).filter((name) => vocabulary.has(name));
    if (names.length) return (result) => names.some((name) => result.set.has(name));
    const parts = word.length > 2 && !talk.has(word) && data.some((result) => result.words.includes(word));
    return parts ? (result) => result.words.includes(word) : null;
  };
  const search = () => {
    // "D = 80" is one word, and so is "gfx1100?".
    const words = field.value.toLowerCase().replace(/\s*=\s*/g, "=").split(/[\s,;?!"()]+/)
      .map((word) => word.replace(/[.:]+$/, "")).filter(Boolean);
    section.hidden = words.length === 0;
    history.replaceState(null, "", words.length ? "#" + new URLSearchParams({ q: words.join(" ") }) : " ");
    body.replaceChildren();
    answer.replaceChildren();
    if (section.hidden) return;
    const tests = words.map((word) => [word, meaning(word)]);
    const unknown = [...new Set(tests.filter(([, test]) => !test).map(([word]) => word))];
    const needed = unknown.filter((word) => /[0-9]/.test(word) || namesOf(word).length > 1);
    const known = tests.filter(([, test]) => test);
    const fitting = (tests) => data.filter((result) => tests.every(([, test]) => test(result)));
    const found = known.length && !needed.length ? fitting(known) : [];
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
    const others = needed.map((word) => {
      const key = word.includes("=") ? word.slice(0, word.indexOf("=") + 1) : null;
      const values = key ? [...vocabulary].filter((other) => other.startsWith(key)) : [];
      return values.length ? `${word} (there are ${values.slice(0, 20).join(", ")})` : word;
    });
    const missing = [...others, ...unknown.filter((word) => !needed.includes(word))];
    const clash = known.filter((one) => !found.length && fitting(known.filter((other) => other !== one)).length);
    note.textContent =
      (found.length
        ? `${found.length} results: ${of("passed")} passed, ${of("failed")} failed, ${of("skipped")} skipped` +
          (found.length > shown ? `; the first ${shown} are listed` : "")
        : needed.length || !known.length
          ? "nothing fits"
          : `nothing fits all of: ${known.map(([word]) => word).join(", ")}` +
            (clash.length ? ` (without one of ${clash.map(([word]) => word).join(", ")} something does)` : "")) +
      (missing.length ? `; no result has: ${missing.join(", ")}` : "");
  };
  field.addEventListener("input", search);
  const linked = new URLSearchParams(location.hash.slice(1)).get("q");
  if (linked) {
    field.value = linked;
    search();
  }
})();
