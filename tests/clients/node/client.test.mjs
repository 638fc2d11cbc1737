// What a client in another language meets, at the service of GO_OPT_ADDRESS.

import assert from "node:assert/strict";
import { after, test } from "node:test";

import grpc from "@grpc/grpc-js";

import { call, chain, connect, details, unpack } from "./go_opt.mjs";

const client = connect(process.env.GO_OPT_ADDRESS);
const graph = chain(8);
const target = { name: "mcm-2x2" };
const search = { graph, target, max_evaluations: 6, policy: "none" };

after(() => client.close());

test("the targets that ship", async () => {
  const { targets } = await call(client.optimizer, "ListTargets", {});
  assert.ok(targets.some(({ name, num_chips }) => name === "mcm-6x6" && num_chips === 36));
});

test("a plan for a graph", async () => {
  const answer = await call(client.optimizer, "Optimize", search);
  assert.equal(answer.plan.placement.length, 8);
  assert.equal(answer.metrics.valid, true);
  assert.ok(answer.lower_bound_s <= answer.metrics.interval_s);
  assert.match(answer.status, /^STATUS_(OPTIMAL|FEASIBLE)$/);
  const { metrics } = await call(client.optimizer, "Evaluate", { graph, target, plan: answer.plan });
  assert.equal(metrics.interval_s, answer.metrics.interval_s);
});

test("every improvement, then the answer", async () => {
  const updates = [];
  const stream = client.optimizer.OptimizeStream({ ...search, seed: 1 }, { deadline: Date.now() + 60_000 });
  for await (const update of stream) updates.push(update);
  const last = updates.pop();
  assert.equal(last.update, "result");
  assert.ok(updates.every(({ update }) => update === "improvement"));
  for (const { improvement } of updates) assert.ok(improvement.metrics.interval_s >= last.result.metrics.interval_s);
});

test("a stream that is cancelled", async () => {
  const stream = client.optimizer.OptimizeStream({ graph: chain(200), target: { name: "mcm-6x6" }, budget_s: 50 });
  const error = await new Promise((resolve, reject) => {
    stream.on("data", () => stream.cancel());
    stream.on("error", resolve);
    stream.on("end", () => reject(new Error("the search was not cancelled")));
  });
  assert.equal(error.code, grpc.status.CANCELLED);
});

test("rewards for a batch of plans", async () => {
  const session = await call(client.environment, "CreateSession", { graph, target });
  const plan = (placement) => ({
    placement,
    order: [...placement.keys()],
    fusion_group: [...placement.keys()],
    replication: placement.map(() => 1),
    provenance: ["by hand"],
    op_provenance: placement.map(() => 0),
    graph_fingerprint: session.graph_fingerprint,
    target_fingerprint: session.target_fingerprint,
    target: target.name,
  });
  const { session_id } = session;
  const plans = [plan([0, 0, 0, 0, 0, 0, 0, 0]), plan([0, 0, 0, 0, 1, 1, 1, 1]), plan([3, 2, 1, 0, 0, 0, 0, 0])];
  const stream = client.environment.Evaluate({ deadline: Date.now() + 60_000 });
  for (const batch_id of [1, 2]) stream.write({ session_id, batch_id, plans });
  stream.end();
  const answers = [];
  for await (const answer of stream) answers.push(answer);
  assert.deepEqual(answers.map(({ batch_id }) => batch_id), ["1", "2"]);
  const [{ metrics, rewards }] = answers;
  assert.deepEqual(metrics.map(({ valid }) => valid), [true, true, false]);
  assert.ok(metrics[2].reason);
  const expected = Math.log(session.reference_interval_s / metrics[1].interval_s);
  assert.ok(Math.abs(rewards[1] - expected) < 1e-9);
  const closed = await call(client.environment, "CloseSession", { session_id });
  assert.equal(closed.plans_evaluated, "6");
});

test("a training job, from its start to its deletion", async () => {
  const request = { policy: "from-javascript", request_id: "one", graph, target, samples: 1, lessons: ["placement"] };
  const started = await call(client.training, "Finetune", request);
  assert.equal((await call(client.training, "Finetune", request)).name, started.name);
  const { name } = started;
  const done = await call(client.operations, "WaitOperation", { name, timeout: { seconds: 300 } }, 320);
  assert.equal(done.done, true, JSON.stringify(done));
  assert.equal(done.result, "response", JSON.stringify(done.error));
  const [type, result] = unpack(done.response);
  assert.equal(type, "go_opt.v1.TrainingResult");
  const { metrics } = await call(client.optimizer, "Evaluate", { graph, target, plan: result.best_plan });
  assert.equal(metrics.interval_s, result.best_interval_s);
  const { operations } = await call(client.operations, "ListOperations", { name: "operations" });
  assert.deepEqual(operations.map((operation) => operation.name), [name]);
  await call(client.operations, "DeleteOperation", { name });
  const error = await refusal(call(client.operations, "GetOperation", { name }));
  assert.equal(error.code, grpc.status.NOT_FOUND);
});

test("a refusal names the field", async () => {
  const broken = structuredClone(graph);
  broken.ops[3].flops = Number.NaN;
  const error = await refusal(call(client.optimizer, "Optimize", { ...search, graph: broken }));
  assert.equal(error.code, grpc.status.INVALID_ARGUMENT);
  const { "google.rpc.ErrorInfo": info, "google.rpc.BadRequest": bad } = details(error);
  assert.deepEqual([info.domain, info.reason], ["go_opt", "INVALID_GRAPH"]);
  assert.equal(bad.field_violations.length, 1);
  assert.match(bad.field_violations[0].description, /op3/);
  const unknown = await refusal(call(client.optimizer, "Optimize", { ...search, target: { name: "mcm-9x9" } }));
  assert.equal(details(unknown)["google.rpc.BadRequest"].field_violations[0].field, "target");
});

test("health", async () => {
  const raw = (bytes) => bytes;
  const answer = await new Promise((resolve, reject) => {
    client.optimizer.makeUnaryRequest("/grpc.health.v1.Health/Check", raw, raw, Buffer.alloc(0), (error, bytes) =>
      error ? reject(error) : resolve(bytes),
    );
  });
  assert.deepEqual([...answer], [8, 1]); // status: SERVING
});

async function refusal(promise) {
  try {
    await promise;
  } catch (error) {
    return error;
  }
  throw new Error("it was not refused");
}
