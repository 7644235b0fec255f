# The same scripts as without `just`.

# Build Volley and run a whole cluster in one process.
up *arguments:
    scripts/up.sh {{arguments}}

# Fetch what the tests need, once, and run them.
test *arguments:
    scripts/test.sh {{arguments}}

# The tests that need no downloads, in under three minutes.
test-quick *arguments:
    scripts/test-quick.sh {{arguments}}

# The tests of the Python client, from its wheel.
test-python-client *arguments:
    scripts/test-python-client.sh {{arguments}}

# The ONNX standard's own tests of every operator, through a running cluster.
onnx-node-tests *arguments:
    scripts/onnx-node-tests.sh {{arguments}}

# Format, lint, licences, advisories, borders, documentation; changes nothing.
verify:
    scripts/verify.sh

# Format, and mend what can be mended.
fix:
    scripts/fix.sh

# Measure a release build.
bench *arguments:
    scripts/bench.sh {{arguments}}

# Three coordinators and two workers as processes on this machine.
cluster *arguments:
    scripts/cluster.sh {{arguments}}

# What clusters of a size cost, on simulated time.
simulate *arguments:
    scripts/simulate.sh {{arguments}}

# Make the generated code from proto/.
codegen:
    scripts/codegen.sh

# Runs the tests and the rates of local models on a GPU; fails without one.
gpu:
    scripts/gpu.sh

# Measures Volley beside other servers and loops: `just bench-peers encoders`, `decoders`, `bulk`, `isolation`.
bench-peers *arguments:
    scripts/bench-peers.sh {{arguments}}

# A million texts through Spark and Ray Data, with an executor and an actor that are killed.
bench-spark *arguments:
    scripts/bench-spark.sh {{arguments}}

# Check alerts, units and chart, each where its tool is there.
verify-deploy:
    scripts/verify-deploy.sh

# Write a bill of materials of the binary.
sbom:
    scripts/sbom.sh

# Make the archive of a release in target/archive: `just release --check` runs it.
release *arguments:
    scripts/release.sh {{arguments}}

# Strikes a cluster with every kind of fault, under load, and checks what its clients saw.
chaos *arguments:
    scripts/chaos.sh {{arguments}}

# Throws made-up bytes at every parser, a minute each: `just fuzz`, `just fuzz 600 events tensors`.
fuzz *arguments:
    scripts/fuzz.sh {{arguments}}

# Measures what is promised under load and to clients that misbehave; prints a table.
promises *arguments:
    scripts/promises.sh {{arguments}}
