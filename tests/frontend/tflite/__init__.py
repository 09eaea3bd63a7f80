"""TFLite files, judged by LiteRT."""
