"""Text generation at the ingress: the loop over instances, sampling, and the API that OpenAI's clients speak."""
