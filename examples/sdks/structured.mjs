// Structured output of Vercel's AI SDK from models of Anthropic and Google.
//
//     npm install ai @ai-sdk/openai zod
//     node structured.mjs http://127.0.0.1:8420 claude gemini
//
// Each model must answer with an animal of four legs. Prints one line for each step; fails on the
// first that is not as it should be.

import assert from "node:assert/strict";

import { createOpenAI } from "@ai-sdk/openai";
import { generateObject, streamObject } from "ai";
import { z } from "zod";

const [url, ...models] = process.argv.slice(2);
const said = (step, text) => console.log(JSON.stringify({ step, text }));
const schema = z.object({
  name: z.string().min(2).describe("What it is called"),
  legs: z.number().int().min(1).max(8),
  colour: z.string().nullable(),
});
const provider = createOpenAI({ baseURL: `${url}/v1`, apiKey: "unused" });

for (const name of models) {
  for (const [step, model] of [["chat", provider.chat(name)], ["response", provider(name)]]) {
    const asked = { model, schema, prompt: "Which animal is it?", maxRetries: 0 };
    const { object, finishReason } = await generateObject(asked);
    assert.equal(object.legs, 4);
    assert.equal(finishReason, "stop");
    const failures = [];
    const streamed = streamObject({ ...asked, onError: ({ error }) => failures.push(error) });
    let parts = 0;
    for await (const part of streamed.partialObjectStream) parts += part ? 1 : 0;
    assert.deepEqual(failures, []);
    assert.deepEqual(await streamed.object, object);
    said(`${name}, ${step}`, `${object.name} in ${parts} parts`);
  }
}
