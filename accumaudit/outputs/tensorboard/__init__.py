"""Runs as TensorBoard shows them: event files of numbers, findings and a layout of charts.

A run has two folders, because TensorBoard knows one axis a folder: steps are updates in `RUN`, and valid
tokens in `RUN@tokens`. Further optimizers have folders of their own: `RUN@optimizer-1`.
"""
