"""Grafana, Prometheus and TensorBoard files that read what accumaudit exports."""
