static model_input input[MODEL_INPUT_SIZE];
static float output[MODEL_OUTPUT_SIZE], work[MODEL_WORK_SIZE];

static int test(void)
{
    int wrong = 0;
    for (int i = 0; i < TESTS; i++) {
        model_predict(test_inputs + (long)i * MODEL_INPUT_SIZE, output, work);
        for (int j = 0; j < MODEL_OUTPUT_SIZE; j++) {
            const float difference = output[j] - test_outputs[i * MODEL_OUTPUT_SIZE + j];
            if (!(difference <= ALLOWED && difference >= -ALLOWED))
                wrong++;
        }
    }
    printf("%d test vectors, %d outputs wrong; %d bytes of constants, %d bytes of memory\n", TESTS, wrong, MODEL_FLASH_BYTES,
           MODEL_RAM_BYTES);
    return wrong > 0;
}

int main(int count, char **words)
{
    if (count > 1 && strcmp(words[1], "--test") == 0)
        return test();
    for (;;) {
        const size_t got = fread(input, sizeof input[0], MODEL_INPUT_SIZE, stdin);
        if (got == 0)
            return 0;
        if (got < MODEL_INPUT_SIZE) {
            fprintf(stderr, "predict: the input ends in the middle of an array of %d values\n", MODEL_INPUT_SIZE);
            return 2;
        }
#if MODEL_CLASSIFIES
        printf("%d\n", model_predict(input, output, work));
#else
        model_predict(input, output, work);
        for (int j = 0; j < MODEL_OUTPUT_SIZE; j++)
            printf("%s%.9g", j ? " " : "", (double)output[j]);
        printf("\n");
#endif
    }
}
