/* Gates in front of NumPy's loops of `matmul`: small products run as ever, large ones are offered to
   Python. Where it has not computed one, for whatever reason, NumPy's loop does. An exception that
   ends the Python code, such as one that a signal's handler raises, is raised once the product is
   done: by a pending call in the main thread, and by PyThreadState_SetAsyncExc in others. Python's
   functions are those of the process that loads this, of any version: its headers are not needed. */
#include <stdint.h>

typedef void loop(char **, intptr_t *, intptr_t *, void *);
typedef struct object object;
typedef unsigned long long address;
extern object *PyExc_RecursionError;
int PyGILState_Ensure(void), Py_AddPendingCall(int (*)(void *), void *);
int PyThreadState_SetAsyncExc(unsigned long, object *);
unsigned long PyThread_get_thread_ident(void);
object *PyObject_CallFunction(object *, const char *, ...);
void *PyCapsule_GetPointer(object *, const char *);
void PyGILState_Release(int), Py_IncRef(object *), Py_DecRef(object *);
void PyErr_Fetch(object **, object **, object **), PyErr_Restore(object *, object *, object *);

static struct gate {
    int stands;                     /* maybe below somebody else's loop */
    intptr_t matrices, vectors;     /* least multiplications of a product that is offered */
    loop *numpys;
} gates[2];                         /* of float32 and float64 */
static int types[2][3] = {{11, 11, 11}, {12, 12, 12}};          /* NPY_FLOAT, NPY_DOUBLE */
static int (*replace)(object *, loop *, int *, loop **);        /* PyUFunc_ReplaceLoopBySignature */
static object *offered, *type, *value, *traceback;      /* an exception is the main thread's */
static unsigned long main_thread;

static int raise_it(void *unused)
{
    object *one = type, *two = value, *three = traceback;
    (void)unused;
    type = value = traceback = 0;
    if (one) PyErr_Restore(one, two, three);
    return -!!one;
}

static int offer(int which, char **args, intptr_t *dims, intptr_t *steps, void *data)
{
    intptr_t is_done = 0;
    int state = PyGILState_Ensure();
    object *error[3] = {PyObject_CallFunction(offered, "iKKKKK", which, (address)&is_done,
        (address)args, (address)dims, (address)steps, (address)data), 0, 0};
    if (!error[0]) {
        unsigned long thread = PyThread_get_thread_ident();
        PyErr_Fetch(error, error + 1, error + 2);
        if (error[0] == PyExc_RecursionError) ;         /* NumPy's loop needs no frame */
        else if (thread != main_thread) PyThreadState_SetAsyncExc(thread, error[0]);
        else if (!type) {
            type = error[0], value = error[1], traceback = error[2];
            error[0] = error[1] = error[2] = 0;
            Py_AddPendingCall(raise_it, 0);
        }
    }
    for (int i = 0; i < 3; i++) Py_DecRef(error[i]);
    PyGILState_Release(state);
    return is_done;
}

static inline void pass(int which, char **args, intptr_t *dims, intptr_t *steps, void *data)
{
    struct gate *gate = gates + which;
    intptr_t least = dims[1] == 1 || dims[3] == 1 ? gate->vectors : gate->matrices;
    if (dims[0] * dims[1] * dims[2] * dims[3] < least || !offer(which, args, dims, steps, data))
        gate->numpys(args, dims, steps, data);
}
static void pass_floats(char **args, intptr_t *dims, intptr_t *steps, void *data)
{
    pass(0, args, dims, steps, data);
}
static void pass_doubles(char **args, intptr_t *dims, intptr_t *steps, void *data)
{
    pass(1, args, dims, steps, data);
}
static loop *passes[2] = {pass_floats, pass_doubles};

/* Opens NumPy's tables of its C API, of which this gives the version. */
unsigned begin(object *array_api, object *ufunc_api, unsigned long thread)
{
    unsigned (*version)(void) = ((void **)PyCapsule_GetPointer(array_api, 0))[0];
    replace = ((void **)PyCapsule_GetPointer(ufunc_api, 0))[30];
    main_thread = thread;
    return version();
}

/* What stood in the place of a loop of `matmul`, where another one stands from now on. */
loop *swap(object *matmul, int which, loop *other)
{
    loop *found = 0;
    replace(matmul, other, types[which], &found);
    return found;
}

void stand(object *matmul, object *function, intptr_t matrices, intptr_t vectors)
{
    if (offered != function) Py_IncRef(offered = function);
    for (int i = 0; i < 2; i++) {
        loop *found = swap(matmul, i, passes[i]);
        if (!gates[i].stands) gates[i].numpys = found;
        else if (found != gates[i].numpys) swap(matmul, i, found);      /* it may call the gate */
        gates[i] = (struct gate){1, matrices, vectors, gates[i].numpys};
    }
}

void leave(object *matmul)
{
    for (int i = 0; i < 2; i++) {
        loop *found = swap(matmul, i, gates[i].numpys);
        gates[i] = (struct gate){found != passes[i], INTPTR_MAX, INTPTR_MAX, gates[i].numpys};
        if (found != passes[i]) swap(matmul, i, found);         /* somebody else's stays */
    }
}

void run(int which, char **args, intptr_t *dims, intptr_t *steps, void *data)
{
    gates[which].numpys(args, dims, steps, data);
}
