// The npm clients of OpenAI, Anthropic and Ollama, and Vercel's AI SDK, pointed at a Volley cluster.
//
//     npm install openai @anthropic-ai/sdk ai @ai-sdk/openai ollama
//     node client.mjs http://127.0.0.1:8420 storyteller text-embed
//
// Without the name of an embedder it does not embed. Prints one line for each step; fails on the first that is not as it should be.

import assert from "node:assert/strict";

import Anthropic from "@anthropic-ai/sdk";
import { createOpenAI } from "@ai-sdk/openai";
import { embedMany, generateText, streamText } from "ai";
import { Ollama } from "ollama";
import OpenAI from "openai";

const [url = "http://127.0.0.1:8420", model = "storyteller", embedder] = process.argv.slice(2);
const prompt = "Tell me a story about a fox.";
const messages = [{ role: "user", content: prompt }];
const said = (step, text) => console.log(JSON.stringify({ step, text }));

async function withOpenAI() {
  const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: "unused", maxRetries: 0 });
  const whole = await client.chat.completions.create({ model, messages, max_tokens: 20 });
  const told = whole.choices[0].message.content;
  let text = "";
  const events = await client.chat.completions.create({
    model, messages, max_tokens: 20, stream: true,
  });
  for await (const event of events) text += event.choices[0]?.delta.content ?? "";
  assert.equal(text, told);
  said("openai, chat", text);

  const stream = client.responses.stream({ model, input: prompt, max_output_tokens: 20 });
  let response = "";
  for await (const event of stream) {
    if (event.type === "response.output_text.delta") response += event.delta;
  }
  const final = await stream.finalResponse();
  assert.equal(final.output_text, response);
  assert.equal(final.status, "incomplete");
  said("openai, response", response);

  const nobody = client.chat.completions.create({ model: "nobody", messages });
  const error = await nobody.then(assert.fail, (error) => error);
  assert.ok(error instanceof OpenAI.NotFoundError, String(error));
  said("openai, refused", error.code);

  const left = await client.chat.completions.create({
    model, messages, max_tokens: 900, stream: true,
  });
  for await (const event of left) {
    assert.ok(event.id);
    break;
  }
  assert.ok(left.controller.signal.aborted);
}

async function withAnthropic() {
  const client = new Anthropic({ baseURL: url, apiKey: "unused", maxRetries: 0 });
  const whole = await client.messages.create({ model, messages, max_tokens: 20 });
  const stream = client.messages.stream({ model, messages, max_tokens: 20 });
  const text = await stream.finalText();
  assert.equal(text, whole.content[0].text);
  said("anthropic, message", text);
  const counted = await client.messages.countTokens({ model, messages });
  assert.ok(0 < counted.input_tokens);
  said("anthropic, tokens", counted.input_tokens);
  const nobody = client.messages.create({ model: "nobody", messages, max_tokens: 1 });
  await assert.rejects(nobody, Anthropic.NotFoundError);
  const bad = client.messages.create({ model, messages, max_tokens: 1, temperature: -1 });
  await assert.rejects(bad, Anthropic.BadRequestError);
  const left = client.messages.stream({ model, messages, max_tokens: 900 });
  for await (const event of left) {
    if (event.type === "content_block_delta") break;
  }
  left.abort();
}

async function withVercel() {
  const provider = createOpenAI({ baseURL: `${url}/v1`, apiKey: "unused" });
  for (const [step, chosen] of [
    ["ai, chat", provider.chat(model)],
    ["ai, response", provider(model)],
  ]) {
    const asked = { model: chosen, prompt, maxOutputTokens: 20, maxRetries: 0 };
    const whole = await generateText(asked);
    let text = "";
    const failures = [];
    const streamed = streamText({ ...asked, onError: ({ error }) => failures.push(error) });
    for await (const delta of streamed.textStream) text += delta;
    assert.deepEqual(failures, []);
    assert.equal(text, whole.text);
    assert.equal(whole.finishReason, "length");
    assert.equal(whole.usage.outputTokens, 20);
    said(step, text);

    const refused = generateText({ ...asked, temperature: -1 });
    await assert.rejects(refused, (error) => error.statusCode === 400);
    const leave = new AbortController();
    const left = streamText({
      ...asked, maxOutputTokens: 900, abortSignal: leave.signal, onError: () => {},
    });
    for await (const delta of left.textStream) {
      if (delta) leave.abort();
    }
    assert.ok(leave.signal.aborted);
  }
}

async function withOllama() {
  const client = new Ollama({ host: url });
  const asked = { model, messages, options: { num_predict: 20, temperature: 0 } };
  const whole = await client.chat(asked);
  assert.equal(whole.eval_count, 20);
  let text = "";
  for await (const part of await client.chat({ ...asked, stream: true })) text += part.message.content;
  assert.equal(text, whole.message.content);
  await assert.rejects(client.chat({ ...asked, model: "nobody" }), { status_code: 404 });
  await assert.rejects(client.chat({ ...asked, format: "xml" }), { status_code: 400 });
  const left = await client.chat({ ...asked, options: { num_predict: 900 }, stream: true });
  for await (const part of left) {
    assert.ok(!part.done);
    left.abort();
    break;
  }
  said("ollama, chat", text);
}

async function withVectors() {
  const values = ["the quick fox", "a small crow"];
  const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: "unused", maxRetries: 0 });
  const given = await client.embeddings.create({ model: embedder, input: values });
  const vectors = given.data.map((each) => each.embedding);
  const bad = client.embeddings.create({ model, input: values });
  await assert.rejects(bad, OpenAI.BadRequestError);
  said("openai, embeddings", vectors[0].length);
  const provider = createOpenAI({ baseURL: `${url}/v1`, apiKey: "unused" });
  const told = await embedMany({ model: provider.embeddingModel(embedder), values, maxRetries: 0 });
  assert.deepEqual(told.embeddings.map((each) => each.length), vectors.map((each) => each.length));
  const none = embedMany({ model: provider.embeddingModel("nobody"), values, maxRetries: 0 });
  await assert.rejects(none, (error) => error.statusCode === 404);
  said("ai, embeddings", told.embeddings.length);
}

await withOpenAI();
await withAnthropic();
await withVercel();
await withOllama();
if (embedder) await withVectors();
