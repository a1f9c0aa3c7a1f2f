// The server's API: its server-sent events as objects.

export class Problem extends Error {
  constructor(status, error) {
    super(error?.message ?? `the server answered with status ${status}`);
    this.status = status;
  }
}

function headers(key) {
  return { "Content-Type": "application/json", ...(key ? { Authorization: `Bearer ${key}` } : {}) };
}

async function answered(path, options) {
  let response;
  try {
    response = await fetch(path, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem(0, { message: "the server can't be reached" });
  }
  if (response.ok) return response;
  const payload = await response.json().catch(() => ({})); // a proxy's error is no JSON
  throw new Problem(response.status, payload.error);
}

export async function model(key) {
  const response = await answered("/v1/models", { headers: headers(key) });
  return (await response.json()).data[0];
}

export async function* chat(body, key, signal) {
  const request = { ...body, stream: true, stream_options: { include_usage: true }, events: true };
  const response = await answered("/v1/chat/completions", {
    method: "POST", headers: headers(key), body: JSON.stringify(request), signal,
  });
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) throw new Problem(0, { message: "the answer broke off" });
    const events = (rest + value).split("\n\n");
    rest = events.pop();
    for (const event of events) {
      const data = event.replace(/^data: /, "");
      if (data === "[DONE]") return;
      const chunk = JSON.parse(data);
      if (chunk.error) throw new Problem(500, chunk.error);
      yield chunk;
    }
  }
}
