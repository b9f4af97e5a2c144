// npm's `openai` and `ai`, each streamed and whole: one JSON object on standard output. Arguments: URL, model.
import OpenAI from "openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, streamText } from "ai";

const [url, model] = process.argv.slice(2);
const messages = [{ role: "user", content: "hello" }], greedy = { temperature: 0 };
const client = new OpenAI({ baseURL: url, apiKey: "none", maxRetries: 0 });
const whole = await client.chat.completions.create({ model, messages, max_tokens: 6, ...greedy });
let streamed = "", usage = null;
for await (const piece of await client.chat.completions.create({ model, messages, max_tokens: 6, stream: true, stream_options: { include_usage: true }, ...greedy })) {
  streamed += piece.choices[0]?.delta?.content ?? "";
  usage = piece.usage ?? usage;
}
const wrong = await client.chat.completions.create({ model: "none", messages }).catch((error) => error);
const provider = createOpenAICompatible({ name: "smoe", baseURL: url, includeUsage: true });
const generated = await generateText({ model: provider(model), messages, maxOutputTokens: 6, maxRetries: 0, ...greedy });
const stream = streamText({ model: provider(model), messages, maxOutputTokens: 6, maxRetries: 0, ...greedy });
let pieces = "";
for await (const piece of stream.textStream) pieces += piece;
console.log(JSON.stringify({
  whole: whole.choices[0].message.content, streamed, usage: usage.completion_tokens, wrong: [wrong.status, wrong.code],
  generated: generated.text, generatedTokens: generated.usage.outputTokens, finish: await stream.finishReason, pieces,
}));
