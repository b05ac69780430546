"""Pods of three kinds as T9k's documentation prints them, byte for byte."""

EXCLUSIVE_GPU = """\
apiVersion: v1
kind: Pod
metadata:
  name: exclusive-gpu
  labels:
    scheduler.tensorstack.dev/group-name: gpu-usage
spec:
  schedulerName: t9k-scheduler
  containers:
  - image: example.io/example-image:latest
    name: exclusive
    resources:
      limits:
        tensorstack.dev/nvidia-gpu: 2
"""

SHARED_GPU = """\
apiVersion: v1
kind: Pod
metadata:
  name: shared-gpu
  labels:
    scheduler.tensorstack.dev/group-name: gpu-usage
spec:
  schedulerName: t9k-scheduler
  containers:
  - image: example.io/example-image:latest
    name: shared
    resources:
      limits:
        tensorstack.dev/nvidia-gpu-percent: 30
      requests:
        cpu: 500m
        memory: 200Mi
"""

EXCLUSIVE_NODE = """\
apiVersion: v1
kind: Pod
metadata:
  name: exlusive-node
  labels:
    scheduler.tensorstack.dev/group-name: gpu-usage
spec:
  schedulerName: t9k-scheduler
  containers:
  - image: nginx
    name: exlusive
    resources:
      limits:
        tensorstack.dev/nvidia-gpu-node: 1
"""
