"""The keys of a Ray Serve config file (Ray 2.60), by the place where they stand: for `kvcluster.config_file`.

Written down here, because a file is checked where Ray Serve is not installed, and before Ray is imported. A test holds
them against Serve's own schema.
"""

from __future__ import annotations

DOCUMENT = (
    "applications",
    "proxy_location",
    "http_options",
    "grpc_options",
    "controller_options",
    "logging_config",
    "tracing_config",
    "target_capacity",
)
HTTP_OPTIONS = (
    "host",
    "port",
    "root_path",
    "request_timeout_s",
    "keep_alive_timeout_s",
    "ssl_keyfile",
    "ssl_certfile",
    "ssl_keyfile_password",
    "ssl_ca_certs",
)
APPLICATION = (
    "name",
    "route_prefix",
    "import_path",
    "runtime_env",
    "host",
    "port",
    "deployments",
    "autoscaling_policy",
    "args",
    "logging_config",
    "external_scaler_enabled",
)
DEPLOYMENT = (
    "name",
    "num_replicas",
    "max_ongoing_requests",
    "max_queued_requests",
    "backpressure_config",
    "user_config",
    "autoscaling_config",
    "graceful_shutdown_wait_loop_s",
    "graceful_shutdown_timeout_s",
    "health_check_period_s",
    "health_check_timeout_s",
    "ray_actor_options",
    "placement_group_bundles",
    "placement_group_strategy",
    "placement_group_bundle_label_selector",
    "max_replicas_per_node",
    "logging_config",
    "request_router_config",
    "gang_scheduling_config",
    "deployment_actors",
    "rolling_update_percentage",
    "max_surge_percent",
)
ACTOR_OPTIONS = (
    "runtime_env",
    "num_cpus",
    "num_gpus",
    "memory",
    "resources",
    "accelerator_type",
    "label_selector",
    "fallback_strategy",
)
AUTOSCALING = (
    "min_replicas",
    "initial_replicas",
    "max_replicas",
    "target_ongoing_requests",
    "metrics_interval_s",
    "look_back_period_s",
    "smoothing_factor",
    "upscale_smoothing_factor",
    "downscale_smoothing_factor",
    "upscaling_factor",
    "downscaling_factor",
    "downscale_delay_s",
    "downscale_to_zero_delay_s",
    "upscale_delay_s",
    "aggregation_function",
    "policy",
)
REQUEST_ROUTER = (
    "request_router_class",
    "request_router_kwargs",
    "request_routing_stats_period_s",
    "request_routing_stats_timeout_s",
    "initial_backoff_s",
    "backoff_multiplier",
    "max_backoff_s",
)
GRPC_OPTIONS = ("port", "grpc_servicer_functions", "request_timeout_s", "enable_reflection")

# What Serve drops in silence below a deployment; what is not here it refuses by itself, or takes as it is.
BELOW_DEPLOYMENT = {
    "ray_actor_options": ACTOR_OPTIONS,
    "autoscaling_config": AUTOSCALING,
    "request_router_config": REQUEST_ROUTER,
}
