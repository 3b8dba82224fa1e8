// The chat box: one conversation with the model, streamed.

import { byId, count, duration, html } from "/ui/dom.js";

/** Make the chat box work; `headers` returns those of every request, `model` the model's name. */
export function startChat(headers, model) {
  const history = [];
  let abort = null;
  const note = byId("chat-note"), question = byId("question"), send = byId("send"), messages = byId("messages");

  async function ask(text) {
    history.push({ role: "user", content: text });
    show("user", text);
    const shown = show("assistant", "");
    abort = new AbortController();
    send.textContent = "Stop";
    try {
      const answer = await stream(history, headers(), model(), abort.signal, (piece) => {
        shown.textContent += piece;
        messages.scrollTop = messages.scrollHeight;
      });
      history.push({ role: "assistant", content: shown.textContent });
      note.textContent = `First token after ${duration(answer.first)}, ${count(answer.tokens, "token")}, ${answer.rate} tokens/s.`;
    } catch (error) {
      if (error.name !== "AbortError") {
        shown.className = "failed";
        const reason = error instanceof TypeError ? "the gateway does not answer" : error.message; // a fetch that failed
        shown.textContent = `No answer: ${reason}`;
        history.pop();
      } else {
        history.push({ role: "assistant", content: shown.textContent });
      }
    } finally {
      abort = null;
      send.textContent = "Send";
    }
  }

  function show(kind, text) {
    const line = html("p", { class: kind, text });
    messages.append(line);
    messages.scrollTop = messages.scrollHeight;
    return line;
  }

  byId("chat").addEventListener("submit", (event) => {
    event.preventDefault();
    const text = question.value.trim();
    if (abort) abort.abort();
    else if (text) {
      question.value = "";
      ask(text);
    }
  });
  question.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey) {
      event.preventDefault();
      byId("chat").requestSubmit();
    }
  });
  byId("forget").addEventListener("click", () => {
    if (abort) abort.abort();
    history.length = 0;
    messages.replaceChildren();
    note.textContent = "";
  });
}

async function stream(messages, headers, model, signal, onText) {
  const began = performance.now();
  const body = JSON.stringify({ model, messages, stream: true, stream_options: { include_usage: true } });
  const answer = await fetch("/v1/chat/completions", { method: "POST", headers, body, signal });
  if (!answer.ok) throw new Error((await answer.json().catch(() => null))?.error?.message ?? `status ${answer.status}`);
  let first = null, tokens = 0;
  for await (const event of events(answer.body)) {
    if (event.error) throw new Error(event.error.message);
    const delta = event.choices?.[0]?.delta ?? {};
    const text = (delta.reasoning_content ?? "") + (delta.content ?? "");
    if (text) {
      first ??= (performance.now() - began) / 1000;
      onText(text);
    }
    tokens = event.usage?.completion_tokens ?? tokens;
  }
  const seconds = (performance.now() - began) / 1000 - (first ?? 0);
  return { first, tokens, rate: tokens > 1 ? ((tokens - 1) / Math.max(seconds, 1e-3)).toFixed(1) : "–" };
}

/** Yield the data of server-sent events, parsed; they may be cut anywhere. */
async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const parts = (rest + value).split("\n\n");
    rest = parts.pop();
    for (const part of parts) {
      const data = part.split("\n").filter((line) => line.startsWith("data: ")).map((line) => line.slice(6)).join("\n");
      if (data === "[DONE]") return;
      if (data) yield JSON.parse(data);
    }
  }
}
