//! The operations of the Open Inference Protocol, with its documents and shared memory, for the
//! OpenAPI document.

use volley_http_edge::operation::{Operation, get, post};

pub(crate) const OPERATIONS: &[Operation] = &[
    get(
        "/v2",
        "Returns the name, version and extensions of the server.",
        "Anything",
    ),
    get(
        "/v2/health/live",
        "Reports whether the process runs.",
        "Live",
    ),
    get(
        "/v2/health/ready",
        "Reports whether the node accepts requests.",
        "Ready",
    ),
    post(
        "/v2/repository/index",
        "Lists all models and their states.",
        "IndexRequest",
        "Index",
    )
    .body_if_any(),
    post(
        "/v2/repository/models/{model}/load",
        "Deploys a model's newest version, or one with the configuration and files of the load.",
        "Unload",
        "",
    )
    .body_if_any(),
    post(
        "/v2/repository/models/{model}/unload",
        "Undeploys a model.",
        "Unload",
        "",
    )
    .body_if_any(),
    get(
        "/v2/models/{model}",
        "Returns the inputs and outputs of a model.",
        "Metadata",
    ),
    get(
        "/v2/models/{model}/versions/{version}",
        "Returns the inputs and outputs of a version.",
        "Metadata",
    ),
    get(
        "/v2/models/{model}/ready",
        "Reports whether a model is ready.",
        "Ready",
    ),
    get(
        "/v2/models/{model}/versions/{version}/ready",
        "Reports whether a version is ready.",
        "Ready",
    ),
    post(
        "/v2/models/{model}/infer",
        "Runs a model on tensors.",
        "InferRequest",
        "InferResult",
    ),
    post(
        "/v2/models/{model}/versions/{version}/infer",
        "Runs a model on tensors.",
        "InferRequest",
        "InferResult",
    ),
    post(
        "/v2/models/{model}/generate",
        "Generates text.",
        "GenerateRequest",
        "Generated",
    ),
    post(
        "/v2/models/{model}/versions/{version}/generate",
        "Generates text.",
        "GenerateRequest",
        "Generated",
    ),
    post(
        "/v2/models/{model}/generate_stream",
        "Generates text as a stream.",
        "GenerateRequest",
        "",
    )
    .streamed(),
    post(
        "/v2/models/{model}/versions/{version}/generate_stream",
        "Generates text as a stream.",
        "GenerateRequest",
        "",
    )
    .streamed(),
    post(
        "/v2/models/{model}/infer_stream",
        "Runs a model on tensors and streams the responses.",
        "InferRequest",
        "",
    )
    .streamed(),
    post(
        "/v2/models/{model}/versions/{version}/infer_stream",
        "Runs a model on tensors and streams the responses.",
        "InferRequest",
        "",
    )
    .streamed(),
    get(
        "/v2/models/stats",
        "Returns request counts and durations of all models.",
        "Anything",
    ),
    get(
        "/v2/models/{model}/config",
        "Returns the configuration of a model.",
        "Anything",
    ),
    get(
        "/v2/models/{model}/versions/{version}/config",
        "Returns the configuration of a version.",
        "Anything",
    ),
    get(
        "/v2/models/{model}/stats",
        "Returns request counts and durations of a model.",
        "Anything",
    ),
    get(
        "/v2/models/{model}/versions/{version}/stats",
        "Returns request counts and durations of a version.",
        "Anything",
    ),
    get(
        "/v2/docs",
        "Renders the routes of this protocol as a page.",
        "text/html",
    ),
    get(
        "/v2/docs/dataplane.json",
        "Returns the routes of this protocol as OpenAPI.",
        "Anything",
    ),
    get(
        "/v2/models/{model}/docs",
        "Renders the routes of a model as a page.",
        "text/html",
    ),
    get(
        "/v2/models/{model}/docs/dataplane.json",
        "Returns the routes of a model as OpenAPI.",
        "Anything",
    ),
    get(
        "/v2/models/{model}/versions/{version}/docs",
        "Renders the routes of a version as a page.",
        "text/html",
    ),
    get(
        "/v2/models/{model}/versions/{version}/docs/dataplane.json",
        "Returns the routes of a version as OpenAPI.",
        "Anything",
    ),
    get(
        "/v2/systemsharedmemory/status",
        "Lists the regions of system shared memory.",
        "AnyList",
    ),
    get(
        "/v2/systemsharedmemory/region/{region}/status",
        "Returns one region of system shared memory.",
        "AnyList",
    ),
    post(
        "/v2/systemsharedmemory/region/{region}/register",
        "Registers a region of system shared memory.",
        "SharedMemoryRegion",
        "",
    ),
    post(
        "/v2/systemsharedmemory/region/{region}/unregister",
        "Unregisters a region of system shared memory.",
        "Anything",
        "",
    )
    .body_if_any(),
    post(
        "/v2/systemsharedmemory/unregister",
        "Unregisters all regions of system shared memory.",
        "Anything",
        "",
    )
    .body_if_any(),
    get(
        "/v2/cudasharedmemory/status",
        "Lists the regions of CUDA shared memory, which is always empty.",
        "AnyList",
    ),
    get(
        "/v2/cudasharedmemory/region/{region}/status",
        "Returns 404: CUDA shared memory is not supported.",
        "AnyList",
    ),
    post(
        "/v2/cudasharedmemory/region/{region}/register",
        "Rejects the request: CUDA shared memory is not supported.",
        "Anything",
        "",
    )
    .body_if_any(),
    post(
        "/v2/cudasharedmemory/region/{region}/unregister",
        "Unregisters a region of CUDA shared memory; has no effect.",
        "Anything",
        "",
    )
    .body_if_any(),
    post(
        "/v2/cudasharedmemory/unregister",
        "Unregisters all regions of CUDA shared memory; has no effect.",
        "Anything",
        "",
    )
    .body_if_any(),
];
