"""A collector: takes OTLP over gRPC and writes what arrives to a file, one JSON object a line.

Usage: otlp_collector.py FILE. Prints the port that it listens on. The messages are read by
OpenTelemetry's own definitions, so that what is sent is judged by them.
"""

import json
import sys
from concurrent import futures

import grpc
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2 as metrics
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2_grpc as metrics_grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as traces
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc as traces_grpc

out = open(sys.argv[1], "a", buffering=1)


def told(pairs):
    return {
        pair.key: getattr(pair.value, pair.value.WhichOneof("value") or "string_value")
        for pair in pairs
    }


class Traces(traces_grpc.TraceServiceServicer):
    def Export(self, request, context):
        assert not unknown(request), "fields that OTLP does not have"
        for resource in request.resource_spans:
            service = told(resource.resource.attributes)
            for scope in resource.scope_spans:
                for span in scope.spans:
                    assert span.start_time_unix_nano <= span.end_time_unix_nano
                    out.write(json.dumps({
                        "kind": "span",
                        "service": service["service.name"],
                        "instance": service["service.instance.id"],
                        "trace": span.trace_id.hex(),
                        "span": span.span_id.hex(),
                        "parent": span.parent_span_id.hex(),
                        "name": span.name,
                        "side": span.kind,
                        "told": told(span.attributes),
                        "events": [event.name for event in span.events],
                        "error": span.status.code == 2,
                    }) + "\n")
        return traces.ExportTraceServiceResponse()


class Metrics(metrics_grpc.MetricsServiceServicer):
    def Export(self, request, context):
        assert not unknown(request), "fields that OTLP does not have"
        for resource in request.resource_metrics:
            for scope in resource.scope_metrics:
                for metric in scope.metrics:
                    for point in metric.histogram.data_points:
                        assert len(point.bucket_counts) == len(point.explicit_bounds) + 1
                        assert sum(point.bucket_counts) == point.count
                        out.write(json.dumps({
                            "kind": "metric",
                            "name": metric.name,
                            "unit": metric.unit,
                            "count": point.count,
                            "sum": point.sum,
                            "told": told(point.attributes),
                        }) + "\n")
        return metrics.ExportMetricsServiceResponse()


def unknown(message):
    """Whether anything was sent that the definitions do not know."""
    copy = type(message)()
    copy.CopyFrom(message)
    copy.DiscardUnknownFields()
    return copy.ByteSize() != message.ByteSize()


server = grpc.server(futures.ThreadPoolExecutor(4))
traces_grpc.add_TraceServiceServicer_to_server(Traces(), server)
metrics_grpc.add_MetricsServiceServicer_to_server(Metrics(), server)
port = server.add_insecure_port("127.0.0.1:0")
server.start()
print(port, flush=True)
server.wait_for_termination()
