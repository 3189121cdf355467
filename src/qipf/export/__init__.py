"""Graph modules as torch.export programs and ONNX files."""
