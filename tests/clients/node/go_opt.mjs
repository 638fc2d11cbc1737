// A client of go-opt made from its published protos alone.

import grpc from "@grpc/grpc-js";
import protoLoader from "@grpc/proto-loader";

const FILES = [
  "go_opt/proto/optimizer.proto",
  "go_opt/proto/environment.proto",
  "go_opt/proto/training.proto",
  "google/rpc/status.proto",
  "google/rpc/error_details.proto",
];

// Numbers of 64 bits come as text, for JavaScript has none.
const definition = protoLoader.loadSync(FILES, {
  includeDirs: process.env.PROTO_PATH.split(":"),
  keepCase: true,
  longs: String,
  enums: String,
  defaults: true,
  oneofs: true,
});
const { go_opt, google } = grpc.loadPackageDefinition(definition);

// Every method as a function that gives a promise, by service.
export function connect(address) {
  const options = { "grpc.max_receive_message_length": 256 * 2 ** 20, "grpc.max_send_message_length": 256 * 2 ** 20 };
  const make = (Service) => new Service(address, grpc.credentials.createInsecure(), options);
  const services = {
    optimizer: make(go_opt.v1.Optimizer),
    environment: make(go_opt.v1.Environment),
    training: make(go_opt.v1.Training),
    operations: make(google.longrunning.Operations),
  };
  return { ...services, close: () => Object.values(services).forEach((service) => service.close()) };
}

export function call(service, method, request, seconds = 60) {
  return new Promise((resolve, reject) => {
    const options = { deadline: Date.now() + 1000 * seconds };
    service[method](request, options, (error, answer) => (error ? reject(error) : resolve(answer)));
  });
}

// The details of a refusal, by the name of their type.
export function details(error) {
  const [bytes] = error.metadata.get("grpc-status-details-bin");
  const status = definition["google.rpc.Status"].deserialize(bytes);
  return Object.fromEntries(status.details.map(unpack));
}

// A google.protobuf.Any as its type's name and its content.
export function unpack(any) {
  const { "@type": url, type_url, value, ...content } = any;
  const name = (url ?? type_url).split("/").pop();
  return [name, url === undefined ? definition[name].deserialize(value) : content];
}

// Matrix products in a row.
export function chain(length) {
  const ops = [];
  const tensors = [tensor("t0", "TENSOR_KIND_INPUT", { readers: [{ op: 0 }] })];
  for (let i = 0; i < length; i++) {
    ops.push({ name: `op${i}`, op_type: "MatMul", op_class: "OP_CLASS_MATRIX", flops: 1e6, dtype: "float32" });
    const readers = i + 1 < length ? [{ op: i + 1 }] : [];
    tensors.push(tensor(`w${i}`, "TENSOR_KIND_WEIGHT", { readers: [{ op: i }] }));
    tensors.push(tensor(`t${i + 1}`, "TENSOR_KIND_ACTIVATION", { producer: i, readers, is_output: i + 1 === length }));
  }
  return { name: "chain", ops, tensors };
}

function tensor(name, kind, rest) {
  return { name, elements: 1000, dtype: "float32", kind, ...rest };
}
