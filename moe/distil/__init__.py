"""Distillation: the adapter that makes a converted encoder answer like the dense model it came from.

Holds the texts of the recipe, the trainable student, its training, the adapter file, and the measurement of a
finished pipeline. It must never be needed to serve a pipeline: ``moe.split`` reads adapter files, nothing else
of here runs in a function. Texts kept for measuring (``moe.distil.texts``) are never trained on.
"""
