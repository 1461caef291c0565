typedef struct object object;
typedef struct { void *data; int device, device_id, ndim; unsigned char code, bits; unsigned short lanes;
                 long long *shape, *strides; unsigned long long offset; } tensor_t;
typedef struct managed { unsigned major, minor; void *context; void (*deleter)(struct managed *);
                         unsigned long long flags; tensor_t tensor; } managed_t;
typedef struct { unsigned major, minor; void *older;
                 int (*allocate)(tensor_t *, managed_t **, void *,
                                 void (*)(void *, const char *, const char *));
                 int (*take)(void *, managed_t **);
                 int (*give)(managed_t *, void **);
                 int (*look)(void *, tensor_t *);
                 int (*stream)(int, int, void **); } table_t;

/* Whether a tensor is of the dtype and shape in facts: code bits ndim shape... order..., and
   lies without gaps in that order of dimensions */
static int fits(const tensor_t *seen, const long long *facts) {
    long long step = 1;
    if (seen->code != facts[0] || seen->bits != facts[1] || seen->ndim != facts[2]) return 0;
    for (int place = seen->ndim - 1; place >= 0; place--) {
        long long d = facts[3 + seen->ndim + place];
        if (seen->shape[d] != facts[3 + d]) return 0;
        if (seen->strides && seen->shape[d] != 1 && seen->strides[d] != step) return 0;
        step *= seen->shape[d];
    }
    return 1;
}
