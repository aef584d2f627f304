// One sample with all that is known about it.

const STAGE_NAMES = { s: "short answer", h: "thinking", 2: "answer after its thinking", t: "answer with the small model's thinking", c: "reading of the attention", k: "answer to the task's own prompt" };
let images = null; // the thumbnails, loaded with the first sample that is shown

/** Return why a sample left the cascade where it left. */
function reason(exit, mode, verifications) {
  const quoted = (text) => (text === null ? "an answer that cannot be read" : `“${text}”`);
  const [first, second] = verifications;
  if (exit === "agree_short" && first) return `Both short answers agree: small ${quoted(first.small)}, large ${quoted(first.large)}. The large model's short answer is the result, and no model had to think.`;
  if (exit === "confident") return "The large model was confident of its short answer, so it is the result, and no other call was made.";
  const short = first && `small ${quoted(first.small)}, large ${quoted(first.large)}`;
  let before = "The large model was not confident of its short answer. ";
  if (first) before = first.agree ? `The short answers agree (${short}), but the large model was not confident of its own. ` : `The short answers do not agree: ${short}. `;
  if (exit === "agree_think" && second) return `${before}After thinking, the small model answered ${quoted(second.small)}, which agrees with the large model's short answer ${quoted(second.large)}. That answer is the result.`;
  if (exit === "transfer" && second) return `${before}After thinking, the small model answered ${quoted(second.small)}, which does not agree with the large model's short answer ${quoted(second.large)} either. So the large model answered again, with the small model's thinking in its prompt.`;
  if (mode === "transfer") return "Full RT does not compare answers: the large model always answers with the small model's thinking in its prompt.";
  if (exit === "small" || exit === "large") return `The ${exit} model answered alone.`;
  return "The samples file has no trace of this document.";
}

/** Return a text with the searched part marked. */
function marked(text, searched) {
  const nodes = [];
  const small = text.toLowerCase();
  let start = 0;
  // A character may have another length in lower case: mark nothing then.
  for (let at = searched && small.length === text.length ? small.indexOf(searched) : -1; at >= 0; at = small.indexOf(searched, start)) {
    nodes.push(text.slice(start, at), make("mark", {}, text.slice(at, at + searched.length)));
    start = at + searched.length;
  }
  return [...nodes, text.slice(start)];
}

function verdict(one) {
  if (one.isRight === null) return make("span", {}, "no score");
  const isPart = one.score > 0 && one.score < 1;
  return make("span", { class: one.isRight ? "right" : "wrong" }, `${one.isRight ? "✓ right" : "✗ wrong"}${isPart ? ` (${one.score})` : ""}`);
}

const exitTag = (exit) => (exit ? make("span", { class: `exit ${exit}` }, exit) : null);
const effectTag = (effect) => (effect ? make("span", { class: `tag ${effect === "harm" ? "wrong" : "right"}` }, effect) : null);

function callCard(call, searched) {
  const about = [`${count(call.tokens)} tokens`, call.shared ? "shared with another run, which has its time" : seconds(call.ms)];
  if (call.cutOff) about.push("cut off by a limit");
  return make("div", { class: `call ${call.side}` },
    make("p", { class: "about" }, make("b", {}, `${call.side} model: ${STAGE_NAMES[call.stage] ?? call.stage}`), ` · ${about.join(" · ")}`),
    make("pre", { class: "words" }, ...(call.text ? marked(call.text, searched) : ["(empty)"])));
}

function otherMethods(sample) {
  const others = sameDocument(sample).filter((one) => one !== sample);
  if (!others.length) return [];
  const rows = others.map((one) => {
    const found = listed(one);
    const link = make("a", { href: `#sample=${encodeURIComponent(keyOf(one))}` }, runOf(one).method);
    return make("tr", {}, make("td", { class: "text" }, link), make("td", { class: "text" }, exitTag(found.exit) ?? ""),
      make("td", { class: "text" }, shortened(found.answer ?? "", 60)), make("td", { class: "text" }, verdict(found)), make("td", {}, found.tokens === null ? "" : count(found.tokens)));
  });
  const heads = ["method", "exit", "answer", "", "tokens"].map((name, i) => make("th", { class: i < 4 ? "text" : "" }, name));
  return [make("div", { class: "scroll" }, make("table", {}, make("caption", {}, "The same document with the other methods"), make("thead", {}, make("tr", {}, ...heads)), make("tbody", {}, ...rows)))];
}

const shortened = (text, length) => (text.length > length ? `${text.slice(0, length - 1)}…` : text);

async function imageNodes(sample) {
  images ??= valueOf("images");
  const all = await images;
  if (all === null) return [];
  const numbers = all.of[runOf(sample).images]?.[listed(sample).id] ?? [];
  return numbers.map((number) => make("img", { src: `data:image/webp;base64,${all.data[number]}`, alt: "Image of the document, reduced" }));
}

/** Return the nodes of a sample. */
async function detailNodes(sample, searched) {
  const one = listed(sample), run = runOf(sample);
  const { calls, verifications } = await details(sample);
  // With verify=confidence, the small model has no short answer, and the only verification is the second one.
  if (verifications.length && !calls.some((call) => call.side === "small" && call.stage === "s")) verifications.unshift(null);
  const verified = verifications.map((each, i) => each && [
    make("dt", {}, i ? "after the thinking" : "short answers"),
    make("dd", {}, `small ${each.small ?? "(unreadable)"}, large ${each.large ?? "(unreadable)"}: ${each.agree ? "agree" : "do not agree"}`)]).filter(Boolean).flat();
  const copy = make("button", { type: "button", class: "plain", id: "copy" }, "Copy link");
  const close = make("button", { type: "button", class: "plain", id: "close" }, "Close");
  return [
    make("div", { class: "head" }, make("h3", {}, `${run.benchmark} #${one.id}`), exitTag(one.exit), verdict(one), effectTag(one.effect), make("span", { class: "spring" }), copy, close),
    make("p", { class: "note" }, `${run.method}${one.kind ? ` · ${one.kind}` : ""}`),
    ...(await imageNodes(sample)),
    make("h4", {}, "Question, as the task asks it"),
    make("pre", { class: "words" }, ...marked(one.question ?? "", searched)),
    make("dl", {}, make("dt", {}, "gold answer"), make("dd", {}, one.gold ?? ""), make("dt", {}, "scored answer"), make("dd", {}, one.answer ?? ""), ...verified),
    make("h4", {}, "Why it finished here"),
    make("p", { class: "reason" }, reason(one.exit, run.mode, verifications)),
    make("h4", {}, calls.length ? "Calls" : "The trace has no calls"),
    ...calls.map((call) => callCard(call, searched)),
    ...otherMethods(sample),
  ];
}
