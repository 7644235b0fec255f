// The npm clients are told that an answer broke off: a model whose server goes away in the middle
// of one, behind a Volley cluster.
//
//     npm install openai @anthropic-ai/sdk ai @ai-sdk/openai ollama
//     node broken.mjs http://127.0.0.1:8420 cut
//
// Each has what came before and then its own error, never an end. Prints one line for each step;
// fails on the first that is not as it should be.

import assert from "node:assert/strict";

import Anthropic from "@anthropic-ai/sdk";
import { createOpenAI } from "@ai-sdk/openai";
import { generateText, streamText } from "ai";
import { Ollama } from "ollama";
import OpenAI from "openai";

const [url = "http://127.0.0.1:8420", model = "cut"] = process.argv.slice(2);
const prompt = "Tell me a story about a fox.";
const messages = [{ role: "user", content: prompt }];

async function broken(step, kind, texts) {
  let text = "";
  try {
    for await (const piece of texts) text += piece ?? "";
  } catch (error) {
    assert.ok(error instanceof kind, `${step}: ${error}`);
    assert.ok(text, `${step}: nothing came before ${error}`);
    console.log(JSON.stringify({ step, text: error.message }));
    return;
  }
  assert.fail(`${step}: '${text}' was given out for a whole answer`);
}

async function* each(events, text) {
  for await (const event of await events) yield text(event);
}

async function withOpenAI() {
  const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: "unused", maxRetries: 0 });
  const events = client.chat.completions.create({ model, messages, stream: true });
  const texts = each(events, (event) => event.choices[0]?.delta.content);
  await broken("openai, chat", OpenAI.APIError, texts);
  const whole = client.chat.completions.create({ model, messages });
  await assert.rejects(whole, OpenAI.InternalServerError);
}

async function withAnthropic() {
  const client = new Anthropic({ baseURL: url, apiKey: "unused", maxRetries: 0 });
  const asked = { model, messages, max_tokens: 20 };
  const events = client.messages.create({ ...asked, stream: true });
  const texts = each(events, (event) => event.delta?.text);
  await broken("anthropic, message", Anthropic.APIError, texts);
  await assert.rejects(client.messages.create(asked), Anthropic.InternalServerError);
}

async function withVercel() {
  const provider = createOpenAI({ baseURL: `${url}/v1`, apiKey: "unused" });
  for (const [step, chosen] of [
    ["ai, chat", provider.chat(model)],
    ["ai, response", provider(model)],
  ]) {
    const failures = [];
    const onError = ({ error }) => failures.push(error);
    const streamed = streamText({ model: chosen, prompt, maxRetries: 0, onError });
    let text = "";
    for await (const delta of streamed.textStream) text += delta;
    assert.ok(text && failures.length === 1, `${step}: '${text}', ${failures}`);
    console.log(JSON.stringify({ step, text: String(failures[0]?.message ?? failures[0]) }));
    const whole = generateText({ model: chosen, prompt, maxRetries: 0 });
    await assert.rejects(whole, (error) => 500 <= error.statusCode);
  }
}

async function withOllama() {
  const client = new Ollama({ host: url });
  const events = client.chat({ model, messages, stream: true });
  await broken("ollama, chat", Error, each(events, (part) => part.message.content));
  await assert.rejects(client.chat({ model, messages }), (error) => 500 <= error.status_code);
}

await withOpenAI();
await withAnthropic();
await withVercel();
await withOllama();
