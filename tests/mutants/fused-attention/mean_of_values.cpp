extern "C" void attention_forward(const float* q, const float* k, const float* v, float* out, int heads, int seq, int dim, int causal, int threads) {
    for (int h = 0; h < heads; ++h)
        for (int d = 0; d < dim; ++d) {
            float sum = 0;
            for (int j = 0; j < seq; ++j) {
                sum += v[(h * seq + j) * dim + d];
                if (causal) out[(h * seq + j) * dim + d] = sum / (j + 1);
            }
            if (!causal)
                for (int i = 0; i < seq; ++i) out[(h * seq + i) * dim + d] = sum / seq;
        }
}
