"""Values that people give: the matrix that every rule of the other files is held against."""

from typing import Any

EXTERNAL: dict[str, Any] = {
    "postgresql": {"enabled": False},
    "valkey": {"enabled": False},
    "externalDatabase": {
        "existingSecret": "app-db",
        "existingSecretKey": "uri",
        "caSecret": "app-db-ca",
        "passwordSecret": "app-db-password",
    },
    "externalRedis": {"existingSecret": "app-redis", "caSecret": "app-redis-ca"},
}
MONITORED: dict[str, Any] = {
    "podMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
    "serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
    "prometheusRule": {"enabled": True, "labels": {"release": "prometheus"}},
    "dashboard": {"enabled": True},
}
PRODUCTION: dict[str, Any] = {
    **EXTERNAL,
    "production": True,
    "apiKey": {"existingSecret": "app-key", "existingSecretKey": "key"},
    "metrics": MONITORED,
    "networkPolicy": {"enabled": True},
}
POOLS: dict[str, Any] = {
    "worker": {
        "drainSeconds": 60,
        "pools": {
            "default": {"queues": {"runs": 8, "system": 2}, "replicas": 3},
            "large": {
                "queues": {"reports": 1},
                "drainSeconds": 0,
                "pdb": {"enabled": False, "maxUnavailable": 1},
                "image": {"repository": "acme/agents", "digest": "sha256:" + "a" * 64},
                "autoscaling": {"enabled": True, "kind": "keda", "min": 0, "max": 20},
            },
            "by-metric": {
                "queues": {"night": 4},
                "autoscaling": {"enabled": True, "kind": "hpa", "min": 1, "max": 9},
            },
        },
    }
}
OPERATED: dict[str, Any] = {
    "operator": {"enabled": True, "customResources": False},
}
ALL_OFF: dict[str, Any] = {
    "api": {"enabled": False},
    "worker": {"enabled": False},
    "scheduler": {"enabled": False},
    "janitor": {"enabled": False},
    "migrations": {"mode": "none"},
    "apiKey": {"create": False},
    "serviceAccount": {"create": False},
    "tests": {"enabled": False},
    "waitForSchema": {"enabled": False},
}
_PART: dict[str, Any] = {
    "podLabels": {"team": "search"},
    "podAnnotations": {"note": "yes"},
    "nodeSelector": {"kubernetes.io/arch": "amd64"},
    "tolerations": [{"key": "dedicated", "operator": "Exists"}],
    "affinity": {"podAntiAffinity": {}},
    "priorityClassName": "high",
    "runtimeClassName": "gvisor",
    "dnsConfig": {"options": [{"name": "ndots", "value": "2"}]},
    "extraEnv": [{"name": "MODEL_URL", "value": "http://model"}],
    "extraEnvFrom": [{"secretRef": {"name": "model"}}],
    "extraVolumes": [{"name": "models", "emptyDir": {}}],
    "extraVolumeMounts": [{"name": "models", "mountPath": "/models"}],
    "settings": {"DATABASE_POOL": 4, "LOG_LEVEL": "debug"},
}
ALL_ON: dict[str, Any] = {
    "commonLabels": {"team": "search"},
    "commonAnnotations": {"owner": "search"},
    "settings": {"API_MAX_BODY_BYTES": 4194304, "LEASE_SECONDS": 0.5, "REDIS_PREFIX": "{rc}:"},
    "api": {
        **_PART,
        "autoscaling": {"enabled": True, "min": 2, "max": 5, "cpuPercent": 50},
        "ingress": {"enabled": True, "className": "nginx", "hosts": ["rc.example.com"]},
        "service": {"type": "LoadBalancer", "port": 8000, "annotations": {"lb": "internal"}},
    },
    "worker": {**_PART, "replicas": 4},
    "scheduler": _PART,
    "janitor": {**_PART, "pdb": {"enabled": True, "maxUnavailable": 1}},
    "operator": {
        **_PART,
        "enabled": True,
        "clusterWide": True,
        "deletionCost": True,
        "serviceAccount": {"annotations": {"who": "operator"}},
        "settings": {"OPERATOR_WATCH_LIMIT_SECONDS": 120, "OPERATOR_RUNS_PER_NAMESPACE": 10},
    },
    "networkPolicy": {
        "enabled": True,
        "apiFrom": [{"namespaceSelector": {"matchLabels": {"edge": "yes"}}}],
        "metricsFrom": [{"namespaceSelector": {"matchLabels": {"monitoring": "yes"}}}],
        "egress": {"enabled": True},
    },
    "metrics": MONITORED,
    "extraObjects": [
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "{{ .Release.Name }}-more"},
            "data": {"a": "b"},
        }
    ],
}
PRIVATE: dict[str, Any] = {
    "global": {
        "imageRegistry": "registry.example.com:5000",
        "imagePullSecrets": ["pull"],
        "storageClass": "fast",
    },
    "image": {"tag": "1.2.3"},
}
ARBITRARY_USER: dict[str, Any] = {
    "podSecurityContext": {"runAsUser": None, "runAsGroup": None, "fsGroup": None},
}
URLS: dict[str, Any] = {
    "postgresql": {"enabled": False},
    "valkey": {"enabled": False},
    "externalDatabase": {"url": "postgresql://rc:p%40ss@pgbouncer:6432/rc?sslmode=require"},
    "externalRedis": {"url": "rediss://:secret@redis.example.com:6380/1"},
    "apiKey": {"value": "rc_" + "k" * 43},
}
MATRIX: dict[str, dict[str, Any]] = {
    "minimal": {},
    "production": PRODUCTION,
    "all off": ALL_OFF,
    "all on": ALL_ON,
    "pools": POOLS,
    "operated": OPERATED,
    "external stores": EXTERNAL,
    "urls": URLS,
    "private registry": PRIVATE,
    "arbitrary user": ARBITRARY_USER,
    "migrated before each part": {"migrations": {"mode": "initContainer"}},
    "migrated by hand": {"migrations": {"mode": "none"}, "apiKey": {"create": False}},
    "a long name": {"fullnameOverride": "a" * 63},
}
